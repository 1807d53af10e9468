"""Samples rollout trees from states, and counts their costs (turns, tokens, failures).

The rollouts are coroutines (``rollouts.live_rollouts``). A schedule (``engines.sampling_schedule``) decides when the
engine samples their actions. Histories are stored as token ids. The ids that the policy wrote are stored with the
log-probs with which they were sampled. The environment's answer is tokenised once and appended to the history, so that
no text is tokenised twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from turnwise.algo.allocators.allocator import Allocator
from turnwise.algo.gates.gate import Gate
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Engine, Sampling
from turnwise.env import Environment
from turnwise.rollouts.demonstrated_reply import Anchored
from turnwise.rollouts.environment_steps import run_to_end
from turnwise.rollouts.episodes import Episodes
from turnwise.rollouts.live_rollouts import Live, OnReply, OnTree
from turnwise.rollouts.local_verdicts import Verdicts
from turnwise.types import RolloutTree, State

KEPT = 10_000  # greatest number of cached episodes, and of cached verdicts, that are kept between calls


@dataclass(slots=True)
class Tally:
    """The costs of rollouts. A turn is one action that the policy wrote."""

    turns: int = 0
    tokens: int = 0  # tokens that the policy wrote
    faults: int = 0  # rollouts that were lost because the environment failed
    retries: int = 0  # restarts of rollouts whose environment failed
    cancelled: int = 0  # actions that were being sampled when a gate stopped their group
    cancelled_tokens: int = 0  # tokens of cancelled actions, if the engine reports them; not in ``tokens``


@dataclass(slots=True)
class Player:
    """Plays rollouts with an engine and an environment.

    Args:
        engine: samples the actions.
        environment: answers the actions.
        chat: converts between text and tokens.
        sampling: temperature, length limit and filters with which every action is sampled.
        max_turns: greatest number of turns from a state. None: rollouts continue to the end of the episode. With 1,
            actions are judged without a step of the environment (PivotRL's local rollouts), and the verdicts are
            ``info["functional"]`` and ``info["strict"]`` of the turn.
        max_length: greatest number of tokens of a history. A rollout that would exceed it ends unfinished.
        retries: how often a rollout whose environment failed is restarted from its starting state or turn, with new
            random draws. The failed attempt stays in the tree as an invalid leaf.
        environment_seconds: time limit in seconds for one answer of the environment
            (``rollouts.environment_faults``). None: no limit.
        environment_threads: number of concurrent steps and resets in an environment that waits for other processes
            (``rollouts.environment_steps``). With 0, they run one after the other.
        dialogues: the verifier for single replies in dialogues without an environment.
        lock: is held while the environment is used in the thread that samples. Players that run at the same time share
            one lock.
    """

    engine: Engine
    environment: Environment
    chat: ChatTokens
    sampling: Sampling
    max_turns: int | None = None
    max_length: int = 4096
    retries: int = 2
    environment_seconds: float | None = None
    environment_threads: int = 0
    dialogues: Anchored = field(default_factory=Anchored)
    tally: Tally = field(default_factory=Tally)
    lock: threading.RLock = field(default_factory=threading.RLock)
    episodes: Episodes = field(init=False)
    verdicts: Verdicts = field(init=False)

    def __post_init__(self) -> None:
        self.episodes = Episodes(self.environment)
        self.verdicts = Verdicts(self.episodes, self.dialogues)

    def play(
        self,
        states: Sequence[State],
        allocator: Allocator,
        gate: Gate,
        key: object,
        on_turns: Callable[[int], None] | None = None,
        on_reply: OnReply | None = None,
        on_tree: OnTree | None = None,
    ) -> list[RolloutTree]:
        """Samples rollouts that start at ``states``, and returns one rollout tree for each state.

        Args:
            states: the states at which rollouts start. Their ids must differ, because each id names a group.
            allocator: decides how many rollouts start at each state, and where a tree branches after these first
                rollouts have ended.
            gate: decides when to stop a whole tree. It is asked at each step that all first rollouts of the tree have
                reached, until all of them have ended.
            key: names this collection, for example by run seed and iteration. Every random draw is seeded by this key
                together with state, branch and turn.
            on_turns: is called with the number of actions that have just been sampled, to show progress.
            on_reply: is called with each action as soon as it is complete, if ``max_turns`` is 1. A judge can then
                begin while other actions are still sampled. The draws do not depend on this callback.
            on_tree: is called with each tree as soon as all its rollouts have ended.
        """
        if len({state.id for state in states}) != len(states):
            raise ValueError("two states of one collection have the same id, but an id names a group: make ids unique")
        trees = [RolloutTree(state, version=self.engine.version) for state in states]
        # The longest histories come first, so that shorter ones of the same trajectory can share the engine's row.
        order = sorted(range(len(trees)), key=lambda i: -len(states[i].ids))
        counts = allocator(states)
        live = Live(self, allocator, gate, key, on_turns, on_reply, on_tree)
        run_to_end(live.run([trees[i] for i in order], [counts[i] for i in order]))
        if max(len(self.episodes.kept), len(self.verdicts.kept)) > KEPT:
            self.forget()
        return trees

    def forget(self) -> None:
        """Drops the cached episodes and verdicts."""
        self.episodes.kept.clear()
        self.verdicts.kept.clear()

    def using(self, sampling: Sampling, max_turns: int | None) -> Player:
        """Returns a copy of this player with other sampling settings and its own count of costs."""
        return replace(self, sampling=sampling, max_turns=max_turns, tally=Tally())
