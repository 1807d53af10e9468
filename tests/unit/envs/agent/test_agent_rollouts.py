"""The shipped policy through an agent's program: the same tokens as in the environment that the program plays."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import turnwise
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Named, Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.allocate import TreePO, Uniform
from turnwise.methods.gate import Never
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import tiny_path
from turnwise.types import RolloutTree, State, Task
from turnwise_worlds.agent import AgentEnv, with_variables
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.sandbox.sandbox import Limits
from turnwise_worlds.workspace import Box

Make = Callable[..., AgentEnv]
HORIZON, TASKS = 6, 4
SOURCE = Path(turnwise.__file__).parent.parent
PLAYS = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from turnwise_worlds.household import HouseholdEnv
from turnwise.types import Task
episode = HouseholdEnv(horizon={HORIZON}).reset(Task(**task["chore"]))
messages = list(episode.opening())
while not episode.done:
    reply = ask(messages)
    SHOWN
open("score.txt", "w").write(str(float(episode.won)))
"""
LOOP = PLAYS.replace("SHOWN", "messages += [reply, *episode.step(reply['content']).shown]")
SHORT = PLAYS.replace("SHOWN", "messages = [messages[0], *episode.step(reply['content']).shown]")


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy(tiny_path())


@pytest.fixture
def playing(agent: Make, box: Box) -> Callable[[str], AgentEnv]:
    """The household behind an agent's program, with the tasks of the household."""
    chores = HouseholdEnv().tasks("train", TASKS, seed=5)
    rows = [json.dumps({"id": str(n), "chore": dataclasses.asdict(chore)}) for n, chore in enumerate(chores)]
    readable = SOURCE.stat().st_mode & 0o005 == 0o005 and all(f.stat().st_mode & 0o001 for f in SOURCE.parents)
    if SOURCE.is_relative_to("/tmp") or (os.getuid() == 0 and not readable):
        pytest.skip(f"the sandbox has a /tmp of its own, or its user may not read {SOURCE}")
    roomy = Box(limits=Limits(seconds=60, memory_mib=256, processes=12), python=box.python, reads=[str(SOURCE)])
    return lambda program: agent(program, "\n".join(rows) + "\n", box=roomy)


def player_of(policy: Any, env: Any, schedule: Named = "rounds") -> Player:
    model, tokenizer = policy
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids, schedule=schedule)
    engine.load_weights(model, 3)
    return Player(engine, env, chat, Sampling(max_tokens=16), environment_threads=4)


def states_of(player: Player, tasks: list[Task]) -> list[State]:
    """States whose names, and so whose draws, do not depend on the environment."""
    opening = Openings(player.environment, player.chat)
    return [replace(s, id=str(n)) for n, s in enumerate(task_starts(tasks, lambda task: opening(task)[1]))]


def rollouts(tree: RolloutTree) -> list[list[tuple[list[int], list[int]]]]:
    paths = [[tree.turns[i] for i in tree.path(leaf)] for leaf in tree.leaves()]
    return sorted([(turn.action_ids, turn.observation_ids) for turn in path] for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize("allocator", [Uniform(4), TreePO(roots=2, branches=1)], ids=["flat", "branching"])
def test_the_tree_holds_the_tokens_of_the_native_environment(policy: Any, playing: Any, allocator: Any) -> None:
    """A branch in the middle too: its program is served the recorded replies first, and stands where the native episode does."""
    native = player_of(policy, HouseholdEnv(horizon=HORIZON))
    env = playing(LOOP)
    through = player_of(policy, env)
    chores = list(HouseholdEnv().tasks("train", TASKS, seed=5))
    tasks = sorted(env.tasks("train", TASKS), key=lambda task: task.id)
    expected = native.play(states_of(native, chores), allocator, Never(), "k")
    found = through.play(states_of(through, tasks), allocator, Never(), "k")
    for one, other in zip(expected, found, strict=True):
        assert rollouts(one) == rollouts(other)
        ends = [sorted((t.turns[leaf].info["won"], t.turns[leaf].reward) for leaf in t.leaves()) for t in (one, other)]
        assert ends[0] == ends[1]
    assert not any(tree.invalid for tree in found)
    assert through.tally.tokens == native.tally.tokens > 100


@pytest.mark.slow
def test_sixteen_programs_around_the_client_of_openai_side_by_side(policy: Any, box: Box, tmp_path: Path) -> None:
    """The example of the docs, unchanged: every token, reward and end is that of the native environment."""
    openai = Path(pytest.importorskip("openai").__file__).parent.parent
    reads = [str(SOURCE), *{str(openai), str(Path(torch.__file__).parent.parent)}]
    paths = {"PYTHONPATH": ":".join(reads)}
    limits = Limits(seconds=200, memory_mib=2048, processes=16)
    probe = Box(limits=limits, reads=reads).open().shell(with_variables("python3 -c 'import openai'", paths), {})[0]
    if not probe.ok:
        pytest.skip(f"the interpreter inside the sandbox cannot import openai: {probe.output.strip()[-200:]}")
    chores = HouseholdEnv(horizon=30).tasks("train", 2, seed=5)
    rows = [json.dumps({"id": str(n), "chore": dataclasses.asdict(chore)}) for n, chore in enumerate(chores)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows) + "\n")
    env = AgentEnv(
        "python3 agent.py",
        str(tmp_path / "tasks.jsonl"),
        "cat score.txt",
        code=str(SOURCE.parent / "scripts" / "recipes" / "agent"),
        variables=paths,
        box=Box(limits=limits, reads=reads),
    )
    native, through = player_of(policy, HouseholdEnv(horizon=30)), player_of(policy, env)
    through.environment_threads = 16
    tasks = sorted(env.tasks("train", 2), key=lambda task: task.id)
    expected = native.play(states_of(native, list(chores)), Uniform(8), Never(), "k")
    found = through.play(states_of(through, tasks), Uniform(8), Never(), "k")
    assert [rollouts(tree) for tree in expected] == [rollouts(tree) for tree in found]
    assert through.tally.tokens == native.tally.tokens > 1000


@pytest.mark.parametrize("schedule", ["rounds", "free"])
def test_a_shortened_history_is_what_the_policy_sees(policy: Any, playing: Any, schedule: Named) -> None:
    """An agent that shows the chore and the last answer alone: each turn's log-probs are those of the prompt that it sent."""
    env = playing(SHORT)
    player = player_of(policy, env, schedule)
    (state,) = states_of(player, [env.tasks("train", 1)[0]])
    (tree,) = player.play([state], Uniform(2), Never(), "k")
    model = policy[0]
    opening = list(env.reset(state.task).opening())
    assert len(tree.turns) == 2 * HORIZON
    for turn in tree.turns:
        history = tree.history(turn.parent)
        if turn.parent >= 0:
            above = tree.turns[turn.parent]
            assert above.anew
            last = above.observation.removeprefix(f"{opening[0]['content']}\n")
            seen = [*opening, {"role": "user", "content": last}]
            assert history == above.observation_ids == player.chat.prompt(seen)  # type: ignore[attr-defined]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([history + turn.action_ids])).logits[0, len(history) - 1 : -1]
        plain = logits.log_softmax(-1).gather(1, torch.tensor(turn.action_ids)[:, None])[:, 0]
        assert turn.logprobs == pytest.approx(plain.tolist(), abs=1e-4)
