"""Samples rollout trees from states: sample, step the environment, extend, branch, stop.

All live rollouts of all trees take their turns together, so that the engine always decodes one large batch. A turn is token-in
token-out: the ids that the policy wrote are kept with the log-probs under which they were drawn, and what the environment answers
is appended as the ids of a bridge; nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from turnwise.algo.allocators.allocator import Allocator
from turnwise.algo.gates.gate import Gate
from turnwise.engines.engine import Engine, Sample, Sampling
from turnwise.envs.environment import Environment, EnvironmentFault, Session, Step, environment_of
from turnwise.rollouts.ahead import Ahead
from turnwise.rollouts.anchored import Anchored
from turnwise.rollouts.episodes import Episodes
from turnwise.rollouts.guard import guarded
from turnwise.rollouts.local import Verdicts, Verifier
from turnwise.rollouts.seeds import seed_of
from turnwise.types import Message, RolloutTree, State, Turn

KEPT = 10_000  # episodes, and verdicts on actions, remembered between collections

OnReply = Callable[[State, Sequence[int]], None]
"""A state and the ids of the one action that was taken there."""


class Chat(Protocol):
    """What sampling needs of the tokenizer (``data.chat.ChatTokens``)."""

    def bridge(self, observation: Message | Sequence[Message], truncated: bool = False) -> list[int]: ...

    def decode(self, action_ids: Sequence[int]) -> str: ...


@dataclass(slots=True)
class Tally:
    """What rollouts cost. A turn is one action that the policy wrote."""

    turns: int = 0
    tokens: int = 0  # written by the policy
    faults: int = 0  # rollouts lost to a failing environment
    retries: int = 0  # restarts of rollouts whose environment failed

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.turns + other.turns,
            self.tokens + other.tokens,
            self.faults + other.faults,
            self.retries + other.retries,
        )


@dataclass(slots=True)
class _Rollout:
    """One live branch."""

    tree: RolloutTree
    anchor: int  # turn it branched from, and its number there: they name its draws
    branch: int
    origin: int  # the engine's node at the anchor
    actions: tuple[str, ...]  # taken up to the anchor
    tokens: int  # of the history up to there
    attempt: int = 0  # how often it was begun again
    parent: int = -1  # turn index it continues; -1 at the root
    node: int = -1  # the engine's
    session: Session | None = None  # None if a single action is judged and the environment never steps
    depth: int = 0  # turns taken since the root
    length: int = 0  # tokens of its history


@dataclass(slots=True)
class Player:
    """Args:
    engine, environment, chat: what samples, what answers, and the tokens of both.
    sampling: of every action.
    max_turns: turns from a state; None: to the end of the episode. With 1, actions are judged where they are made
        (``info["functional"]``, ``info["strict"]``) and the environment does not step: PivotRL's local rollouts.
    max_length: tokens of a history, after which a rollout ends unfinished.
    retries: how often a rollout whose environment failed is restarted from its anchor, with draws of its own. The attempt
        that failed stays in the tree as an invalid leaf.
    environment_seconds: time limit of one answer of the environment; None: no limit (``rollouts.guard``).
    environment_threads: concurrent steps of an environment that waits for others (``rollouts.ahead``); 0: one after the other.
    dialogues: judges single replies of dialogues that no environment plays.
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
            states: where to act; their ids must differ, for they name the groups.
            allocator: how often, and where a tree branches once its own first rollouts have ended.
            gate: when to stop a whole tree; asked as long as its first rollouts run.
            key: names this collection (run seed, iteration); with state, branch and turn it seeds every draw.
            on_turns: is given the number of turns after each round, for progress.
            on_reply: is given each rollout of one action (``max_turns`` 1) as soon as it is written, so that judging can begin
                while others are still sampled. Draws do not depend on it.
        """
        if len({state.id for state in states}) != len(states):
            raise ValueError("two states of one collection share an id: their groups would be mixed up")
        trees = [RolloutTree(state, version=self.engine.version) for state in states]
        opened: list[int] = []
        # Longest first: shorter states of the same spine then share its row.
        order = sorted(range(len(trees)), key=lambda i: -len(states[i].ids))
        counts = allocator(states)
        live: list[_Rollout] = []
        for i in order:
            live += self._start(trees[i], -1, counts[i], opened)
        waits = self.environment_threads and self.max_turns != 1 and getattr(self.environment, "waits", False)
        ahead = Ahead(self.environment_threads, self.environment_seconds) if waits else None
        try:
            self._run(live, allocator, gate, key, opened, on_turns, on_reply, ahead)
        finally:
            if ahead is not None:
                ahead.close()
        self.engine.close(opened)
        if max(len(self.episodes.kept), len(self.verdicts.kept)) > KEPT:
            self.forget()
        return trees

    def _start(self, tree: RolloutTree, turn: int, count: int, opened: list[int]) -> list[_Rollout]:
        """Starts ``count`` rollouts from a turn of the tree (-1: its root)."""
        if count == 0:
            return []
        state = tree.state
        ids, actions = list(state.ids), list(state.actions)
        for t in tree.path(turn):
            ids += tree.turns[t].action_ids + tree.turns[t].observation_ids
            actions.append(tree.turns[t].text)
        origin = self.engine.open(ids, near=state.task.id)
        opened.append(origin)
        first = len(tree.turns)  # a number no earlier branch of this tree has had
        rollouts: list[_Rollout] = []
        for branch in range(count):
            rollout = _Rollout(tree, turn, first + branch, origin, tuple(actions), len(ids))
            if not self._begin(rollout, opened):
                self.tally.faults += count - branch - 1  # the others stand at the same place
                break
            rollouts.append(rollout)
        return rollouts

    def _begin(self, rollout: _Rollout, opened: list[int], again: bool = False) -> bool:
        """Puts a rollout at its anchor, at once or ``again``; False if the environment fails more often than is retried."""
        while True:
            if again and rollout.attempt == self.retries:
                self.tally.faults += 1
                return False
            rollout.attempt += again
            self.tally.retries += again
            try:
                if self.max_turns != 1:
                    rollout.session = self.episodes.after(rollout.tree.state.task, rollout.actions)
            except EnvironmentFault:
                again = True
                continue
            rollout.node = self.engine.fork(rollout.origin)
            opened.append(rollout.node)
            rollout.parent, rollout.length = rollout.anchor, rollout.tokens
            rollout.depth = len(rollout.tree.path(rollout.anchor))
            return True

    def _expand(self, trees: list[RolloutTree], allocator: Allocator, opened: list[int]) -> list[_Rollout]:
        """Starts further rollouts of trees whose first ones have all ended."""
        if not trees:
            return []
        grown: list[_Rollout] = []
        for tree, branches in zip(trees, allocator.expand(trees), strict=True):
            for turn, count in branches.items():
                grown += self._start(tree, turn, count, opened)
        return grown

    def _run(
        self,
        live: list[_Rollout],
        allocator: Allocator,
        gate: Gate,
        key: object,
        opened: list[int],
        on_turns: Callable[[int], None] | None,
        on_reply: OnReply | None,
        ahead: Ahead | None,
    ) -> None:
        first = {id(r.tree): r.tree for r in live}  # trees that have not been expanded
        while live:
            seeds = [
                seed_of(key, r.tree.state.id, r.anchor, r.branch, r.depth, *[f"attempt {r.attempt}"] * bool(r.attempt))
                for r in live
            ]
            on_sample = partial(_reply, on_reply, live) if on_reply is not None and self.max_turns == 1 else None
            if ahead is not None:
                on_sample = partial(self._step_ahead, ahead, live)
            samples = self.engine.sample([r.node for r in live], self.sampling, seeds, on_sample)
            going = [
                r
                for place, (r, sample) in enumerate(zip(live, samples, strict=True))
                if self._take_turn(r, sample, opened, place, ahead)
            ]
            if on_turns is not None:
                on_turns(len(live))
            touched = {id(r.tree): r.tree for r in live}
            for tree in touched.values():
                if id(tree) in first:  # a gate compares first rollouts, because continuations of one are alike
                    tree.stopped = tree.stopped or gate(tree)
            live = [r for r in going if not r.tree.stopped]
            # A tree branches as soon as its own first rollouts have ended; its branches join those of the other trees.
            busy = {id(r.tree) for r in live}
            ended = [first.pop(tree) for tree in list(first) if tree not in busy]
            live += self._expand([tree for tree in ended if not tree.stopped], allocator, opened)

    def _step_ahead(self, ahead: Ahead, live: Sequence[_Rollout], place: int, sample: Sample) -> None:
        session = live[place].session
        if session is not None and getattr(
            environment_of(self.environment, live[place].tree.state.task), "waits", False
        ):
            ahead.begin(place, partial(self._answer, session, self.chat.decode(sample.ids)))

    def _answer(self, session: Session, text: str) -> Step:
        with guarded(self.environment_seconds):
            return session.step(text)

    def _take_turn(self, rollout: _Rollout, sample: Sample, opened: list[int], place: int, ahead: Ahead | None) -> bool:
        """Records the action and steps the environment; returns whether the rollout goes on."""
        tree = rollout.tree
        text = self.chat.decode(sample.ids)
        turn = Turn(rollout.parent, sample.ids, sample.logprobs, text, truncated=sample.truncated)
        tree.turns.append(turn)
        rollout.parent = len(tree.turns) - 1
        rollout.depth += 1
        self.tally.turns += 1
        self.tally.tokens += len(sample.ids)
        try:
            if rollout.session is None:
                turn.done = True
                self.verdicts.judge(tree.state, turn)
                return False
            begun = ahead.take(place) if ahead is not None else None
            return self._step(rollout, turn, begun or self._answer(rollout.session, text))
        except EnvironmentFault:
            tree.invalid.add(rollout.parent)
            return self._begin(rollout, opened, again=True)

    def _step(self, rollout: _Rollout, turn: Turn, step: Step) -> bool:
        turn.observation, turn.reward, turn.done = step.observation, step.reward, step.done
        turn.info.update(step.info)
        turn.info["won"] = step.won
        if step.messages:
            turn.info["role"] = step.messages[-1]["role"]
        if step.done or (self.max_turns is not None and rollout.depth >= self.max_turns):
            return False
        bridge = self.chat.bridge(step.shown, turn.truncated)
        rollout.length += len(turn.action_ids) + len(bridge)
        if rollout.length + self.sampling.max_tokens > self.max_length:
            return False
        turn.observation_ids = bridge
        self.engine.extend(rollout.node, bridge)
        return True

    def forget(self) -> None:
        """Drops the kept episodes and verdicts."""
        self.episodes.kept.clear()
        self.verdicts.kept.clear()

    def using(self, sampling: Sampling, max_turns: int | None) -> Player:
        """Returns the same player with other sampling settings and a tally of its own."""
        return replace(self, sampling=sampling, max_turns=max_turns, tally=Tally())


def _reply(on_reply: OnReply, live: Sequence[_Rollout], place: int, sample: Sample) -> None:
    on_reply(live[place].tree.state, sample.ids)
