"""The shipped policy as a player in a world, and where it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy
from turnwise.rollouts.episodes import EnvironmentCalls, Episodes, Openings, run_to_end
from turnwise.rollouts.player import Player
from turnwise.shipped import tiny_path
from turnwise.types import RolloutTree, State, Task, Turn


@cache
def policy() -> tuple[Any, ChatTokens]:
    model, tokenizer = load_policy(tiny_path())
    return model.eval(), ChatTokens(tokenizer)


def engine_of(schedule: Any = "rounds") -> TreeEngine:
    model, chat = policy()
    engine = TreeEngine(chat.stop_ids, schedule=schedule)
    engine.load_weights(model, version=3)
    return engine


def player_in(environment: Any, schedule: Any = "rounds", max_tokens: int = 24, **settings: Any) -> Player:
    return Player(engine_of(schedule), environment, policy()[1], Sampling(max_tokens=max_tokens), **settings)


def starts(environment: Any, count: int, seed: int = 0, actions: tuple[str, ...] = ()) -> list[State]:
    """The starts of the first tasks, or what ``actions`` led to, whose tokens are those of the start nevertheless."""
    opening = Openings(environment, policy()[1])
    found = task_starts(environment.tasks("train", count, seed=seed), lambda task: opening(task)[1])
    return [replace(state, actions=actions) for state in found]


def after(episodes: Episodes, task: Task, actions: tuple[str, ...]) -> Any:
    """Makes an episode in this thread."""
    return run_to_end(episodes.after(task, actions, partial(EnvironmentCalls(0, None).call, False)))


def rollouts(tree: RolloutTree) -> list[list[tuple[list[int], str]]]:
    """What each rollout wrote and was answered, in an order that does not depend on who was first."""
    paths = [[tree.turns[i] for i in tree.path(leaf)] for leaf in tree.leaves()]
    return sorted([(turn.action_ids, turn.observation) for turn in path] for path in paths)


def shown(trees: Sequence[RolloutTree]) -> list[list[tuple[Any, ...]]]:
    def of(turn: Turn) -> tuple[Any, ...]:
        return turn.text, turn.observation, turn.reward, turn.done, turn.parent, turn.observation_ids

    return [[of(turn) for turn in tree.turns] for tree in trees]


class Session:
    """An episode of a wrapped world. ``before`` is called with it and may fail; copies are of the same world."""

    def __init__(self, world: World, inner: Any) -> None:
        self.world, self.inner = world, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fork(self) -> Session:
        return type(self)(self.world, self.inner.fork())

    def step(self, action: str) -> Any:
        return self.world.step(self, action)


class World:
    """A world around another one, in whose steps a test takes part (:meth:`step`)."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.name, self.horizon = inner, inner.name, inner.horizon

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def reset(self, task: Task) -> Session:
        return Session(self, self.inner.reset(task))

    def step(self, session: Session, action: str) -> Any:
        return session.inner.step(action)
