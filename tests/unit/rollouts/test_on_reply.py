"""What a player says of single replies while others are still written."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.algo.allocators.allocator import Uniform
from turnwise.algo.gates.rules import Never
from turnwise.algo.states.task_starts import task_starts
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.policy import load_policy
from turnwise.models.shipped import tiny_path
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
from turnwise.types import State, Task
from turnwise_worlds.household import HouseholdEnv


def test_every_single_reply_is_told_when_it_ends_and_draws_stay_the_same() -> None:
    model, tokenizer = load_policy(str(tiny_path()), "float32", 0, 1, 0.0, seed=0)
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(end_ids=chat.stop_ids)
    engine.load_weights(model.eval(), 0)
    player = Player(engine, HouseholdEnv(horizon=2), chat, Sampling(max_tokens=5), max_turns=1)
    states = [
        State(
            f"d{i}#t0",
            Task("", f"d{i}", "train"),
            tuple(chat.prompt([{"role": "user", "content": f"go {i}"}])),
            (),
            "x",
        )
        for i in range(3)
    ]
    told: list[tuple[str, tuple[int, ...]]] = []

    def on_reply(state: State, ids: Sequence[int]) -> None:
        told.append((state.id, tuple(ids)))

    trees = player.play(states, Uniform(4), Never(), "key", on_reply=on_reply)
    written = [(tree.state.id, tuple(turn.action_ids)) for tree in trees for turn in tree.turns]
    assert sorted(told) == sorted(written) and len(told) == 12
    assert [len(ids) for _, ids in told] == sorted(len(ids) for _, ids in told) and len(told[0][1]) < 5
    silent = player.play(states, Uniform(4), Never(), "key")
    assert [(tree.state.id, tuple(turn.action_ids)) for tree in silent for turn in tree.turns] == written

    told.clear()
    opening = Openings(player.environment, chat)
    starts = task_starts(player.environment.tasks("train", 1), lambda task: opening(task)[1])
    player.using(Sampling(max_tokens=5), max_turns=None).play(starts, Uniform(2), Never(), "key", on_reply=on_reply)
    assert told == []  # an episode's end is the world's to say
