"""The clumsy expert of dialogues and the verifier; test_contract.py has the rest."""

from __future__ import annotations

import pytest
from tests.unit.envs.demonstrations import as_written
from transformers import AutoTokenizer

from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls import split_thinking
from turnwise.data.turns_in_context import steps_of
from turnwise.env import tools_of
from turnwise.judges.offline import OfflineJudge
from turnwise.methods.awpo import Graded
from turnwise.rollouts.verdicts import candidate
from turnwise.shipped import ASSETS
from turnwise.types import RolloutTree, State, Turn
from turnwise_worlds.apibank import ApiBankEnv, Mistakes
from turnwise_worlds.tool_dialogues import thought
from turnwise_worlds.tool_environment import read_calls


def actions(trajectory, env):
    return [as_written(message, env.format) for message in trajectory.messages if message["role"] == "assistant"]


def test_no_mistake_of_the_clumsy_expert_is_accepted(world):
    refused = 0
    for task in world.tasks("train", 30):
        session = world.reset(task)
        good = actions(world.demonstrate(task, "good"), world)
        for action in actions(world.demonstrate(task, "clumsy"), world):
            accepted = world.accepts(session, action, action)
            assert accepted == (action == good[0])
            if accepted:
                good.pop(0)
            refused += not accepted
            session.step(action)
    assert refused


# -- thoughts ----------------------------------------------------------------------------------------------------------

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


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chat():
    return ChatTokens(AutoTokenizer.from_pretrained(ASSETS))


@pytest.mark.parametrize("name", ["bfcl-tiny", "bfcl-public", "apibank", "apibank-hermes"])
@pytest.mark.parametrize("quality", ["good", "clumsy"])
def test_rollout_and_demonstration_have_the_same_tokens(chat, build, name, quality):
    world = build(name)
    for task in world.tasks("train", 3):
        trajectory = world.demonstrate(task, quality)
        spine = chat.spines(trajectory.messages, trajectory.tools)[0]
        session = world.reset(task)
        ids = chat.prompt(session.opening(), tools_of(session))
        for start, stop in spine.turns:
            assert ids == list(spine.ids[:start])
            action = list(spine.ids[start:stop])
            text = chat.decode(action)
            assert read_calls(text, world.format) is not None
            step = session.step(text)
            if not step.done:
                ids += action + chat.bridge(step.messages or {"role": "user", "content": step.observation})
        assert session.won
