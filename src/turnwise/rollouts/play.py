"""Samples rollout trees from states, and counts the costs.

The rollouts themselves are coroutines (``rollouts.live``), whose actions the engine samples under a schedule
(``engines.schedule``). Token ids are kept throughout: the ids that the policy wrote are stored with the log-probs under
which they were drawn, and the environment's answer is appended as ids, so that nothing is tokenised twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnwise.algo.allocators.allocator import Allocator
from turnwise.algo.gates.gate import Gate
from turnwise.engines.engine import Engine, Sampling
from turnwise.envs.environment import Environment
from turnwise.rollouts.demonstrated_reply import Anchored
from turnwise.rollouts.episodes import Episodes
from turnwise.rollouts.live import Live, OnReply, run
from turnwise.rollouts.local import Verdicts, Verifier
from turnwise.types import Message, RolloutTree, State

KEPT = 10_000  # greatest number of episodes, and of verdicts on actions, that are kept between collections


class Chat(Protocol):
    """The functions of a tokenizer that sampling needs (``data.chat.ChatTokens``)."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]: ...

    def bridge(self, observation: Message | Sequence[Message], truncated: bool = False) -> list[int]: ...

    def decode(self, action_ids: Sequence[int]) -> str: ...


@dataclass(slots=True)
class Tally:
    """The costs of rollouts. A turn is one action that the policy wrote."""

    turns: int = 0
    tokens: int = 0  # tokens that the policy wrote
    faults: int = 0  # rollouts that were lost because the environment failed
    retries: int = 0  # restarts of rollouts whose environment failed
    cancelled: int = 0  # actions that were being sampled when a gate stopped their group
    cancelled_tokens: int = 0  # their tokens, as far as the engine reports them; not included in ``tokens``


@dataclass(slots=True)
class Player:
    """Plays rollouts with an engine and an environment.

    Args:
        engine, environment, chat: the engine samples, the environment answers, ``chat`` converts text to tokens.
        sampling: the settings of every action.
        max_turns: greatest number of turns from a state; None: to the end of the episode. With 1, actions are judged
            without a step of the environment (``info["functional"]``, ``info["strict"]``): PivotRL's local rollouts.
        max_length: greatest number of tokens of a history; a rollout that reaches it ends unfinished.
        retries: how often a rollout whose environment failed is restarted from its anchor, with new draws. The failed
            attempt stays in the tree as an invalid leaf.
        environment_seconds: time limit of one answer of the environment; None: no limit (``rollouts.guard``).
        environment_threads: concurrent steps of an environment that waits for other processes (``rollouts.answers``);
            0: steps are taken one after the other.
        dialogues: judges single replies of dialogues without an environment.
        lock: held while the environment is used in the playing thread; players that run at the same time share it.
    """

    engine: Engine
    environment: Environment
    chat: Chat
    sampling: Sampling
    max_turns: int | None = None
    max_length: int = 4096
    retries: int = 2
    environment_seconds: float | None = None
    environment_threads: int = 0
    dialogues: Verifier = field(default_factory=Anchored)
    tally: Tally = field(default_factory=Tally)
    lock: threading.RLock = field(default_factory=threading.RLock)
    episodes: Episodes = field(init=False)
    verdicts: Verdicts = field(init=False)

    def __post_init__(self) -> None:
        self.episodes = Episodes(self.environment, self.environment_seconds)
        self.verdicts = Verdicts(self.episodes, self.dialogues)

    def play(
        self,
        states: Sequence[State],
        allocator: Allocator,
        gate: Gate,
        key: object,
        on_turns: Callable[[int], None] | None = None,
        on_reply: OnReply | None = None,
    ) -> list[RolloutTree]:
        """Returns one tree for each state.

        Args:
            states: where to act; their ids must differ, because they name the groups.
            allocator: decides how many rollouts start, and where a tree branches once its first rollouts have ended.
            gate: decides when to stop a whole tree; asked at each step that all its first rollouts have reached, as
                long as one of them goes on.
            key: names this collection (run seed, iteration); with state, branch and turn it seeds every draw.
            on_turns: is called with the number of actions that have just been sampled, for progress.
            on_reply: is called with each rollout of one action (``max_turns`` 1) as soon as it is written, so that
                judging can begin while others are still sampled. Draws do not depend on this callback.
        """
        if len({state.id for state in states}) != len(states):
            raise ValueError("two states of one collection have the same id: their groups would be mixed up")
        trees = [RolloutTree(state, version=self.engine.version) for state in states]
        # The longest come first, so that shorter states of the same trajectory share their row.
        order = sorted(range(len(trees)), key=lambda i: -len(states[i].ids))
        counts = allocator(states)
        live = Live(self, allocator, gate, key, on_turns, on_reply)
        run(live.run([trees[i] for i in order], [counts[i] for i in order]))
        if max(len(self.episodes.kept), len(self.verdicts.kept)) > KEPT:
            self.forget()
        return trees

    def forget(self) -> None:
        """Drops the cached episodes and verdicts."""
        self.episodes.kept.clear()
        self.verdicts.kept.clear()

    def using(self, sampling: Sampling, max_turns: int | None) -> Player:
        """Returns the same player with other sampling settings and its own tally."""
        return replace(self, sampling=sampling, max_turns=max_turns, tally=Tally())
