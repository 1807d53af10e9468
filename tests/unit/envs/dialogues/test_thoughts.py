"""Experts that state their thoughts: what they say, that the world does not read it, and that a judge does."""

from __future__ import annotations

from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls import split_thinking
from turnwise.data.turns_in_context import steps_of
from turnwise.judges.offline import OfflineJudge
from turnwise.methods.awpo import Graded
from turnwise.rollouts.verdicts import candidate
from turnwise.types import RolloutTree, State, Turn
from turnwise_worlds.apibank import ApiBankEnv, Mistakes
from turnwise_worlds.tool_dialogues import thought

NEVER = {"wrong": 0.0, "unknown": 0.0, "missing": 0.0, "repeat": 0.0, "look": 0.0, "early": 0.0}


def said(trajectory):
    return [m["content"] for m in trajectory.messages if m["role"] == "assistant"]


def test_the_verifier_reads_no_thoughts():
    env = ApiBankEnv(thinks=True)
    task = env.tasks("train", 1)[0]
    session = env.reset(task)
    right = split_thinking(said(env.demonstrate(task))[0])[1]
    assert all(
        env.accepts(session, text, right) for text in (right, thought(["Dictionary"]) + right, thought([]) + right)
    )
    assert not env.accepts(session, thought([]) + "done", right)


def test_who_is_muddled_thinks_wrongly_and_acts_rightly():
    env = ApiBankEnv(levels=(1,), thinks=True, mistakes=Mistakes(**NEVER), muddle=1.0)
    for task in env.tasks("train", 12):
        good, clumsy = said(env.demonstrate(task)), said(env.demonstrate(task, "clumsy"))
        for right, wrong in zip(good, clumsy, strict=True):
            assert split_thinking(right)[1] == split_thinking(wrong)[1]
            assert split_thinking(right)[0] != split_thinking(wrong)[0]


def test_the_outcome_does_not_see_the_thought_and_the_judge_does():
    env = ApiBankEnv(levels=(1,), thinks=True)
    trajectory = env.demonstrate(env.tasks("train", 1)[0])
    step = steps_of(trajectory)[0]
    right = said(trajectory)[0]
    others = [function_of(tool)["name"] for tool in trajectory.tools]
    wrong = thought(others[::-1]) + split_thinking(right)[1]
    judge = OfflineJudge()
    scores = [judge.score(candidate(step, text, "bfcl_python")) for text in (right, wrong)]
    assert scores[0] == 1.0 > scores[1]
    state = State("s", trajectory.task, (1,), expert=right)
    tree = RolloutTree(state, [Turn(-1, [1], [0.0], text) for text in (right, wrong)])
    assert Graded("bfcl_python")(tree)["outcome"] == [2.0, 2.0]
