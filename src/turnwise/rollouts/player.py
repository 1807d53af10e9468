"""Samples rollout trees from states, and counts their costs (turns, tokens, failures).

The rollouts of one call are coroutines. A schedule (``engines.engine``) decides when the engine samples their actions.
Histories are stored as token ids. The ids that the policy wrote are stored with the log-probs with which they were
sampled. The environment's answer is tokenised once and appended to the history, so that no text is tokenised twice.

In the order of this file: seeds; one group, which asks the gate and runs the branches of the allocator; the rollouts of
one call; the player.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import count as numbers
from typing import Any

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Begin, Engine, Request, Sample, Sampling, schedule_of
from turnwise.env import Environment, EnvironmentFault, Session, Step, tools_of, waits
from turnwise.methods.allocate import Allocator
from turnwise.methods.gate import Gate
from turnwise.rollouts.episodes import EnvironmentCalls, Episodes, RolloutLimit, run_to_end
from turnwise.rollouts.verdicts import AnchoredVerdict, Verdicts
from turnwise.types import RolloutTree, State, Turn


def seed_of(*parts: object) -> int:
    """A 64-bit seed from the parts of a name, e.g. (run seed, iteration, state id, branch, turn)."""
    return int.from_bytes(blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest(), "little")


# -- one group ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Branch:
    """A running rollout, which starts at its *anchor*: a turn of the tree, or the root (-1)."""

    tree: RolloutTree
    number: int  # the rollouts of one call of ``Player.play`` are numbered in the order in which they begin
    anchor: int  # the turn after which the rollout starts; part of the seed of its draws
    branch: int  # a number that is unique among the rollouts that start at this anchor
    origin: int  # the engine's node (a stored prefix) at the anchor
    actions: tuple[str, ...]  # all actions from the start of the task up to the anchor
    tokens: int  # the number of tokens up to the anchor
    attempt: int = 0  # how often the rollout was restarted because its environment failed
    parent: int = -1  # index of the turn that the rollout continues, or -1 (the root)
    node: int = -1  # the engine's node for the rollout's history
    session: Session | None = None  # the environment's episode; None if single actions are judged without a step
    turns: list[int] = field(default_factory=list)  # indices of the rollout's turns, including failed attempts
    depth: int = 0  # the number of turns since the root
    reached: int = 0  # the number of turns since the root that the environment has answered
    length: int = 0  # the number of tokens of the history of this rollout

    def seed(self, key: object) -> int:
        """The seed with which the next action is drawn; ``key`` is the key of the collection."""
        attempt = [f"attempt {self.attempt}"] * bool(self.attempt)
        return seed_of(key, self.tree.state.id, self.anchor, self.branch, self.depth, *attempt)


@dataclass(slots=True, eq=False)
class Group:
    """The group of rollouts of one tree, while they are sampled."""

    playing: Playing
    number: int  # the group's index among the groups of one call of ``Player.play``
    tree: RolloutTree
    count: int  # number of rollouts that start at the root, which are called the first rollouts
    asked: int = 0  # the last step (turns since the root) at which the gate was asked
    _held: dict[Branch, asyncio.Future[None]] = field(default_factory=dict)
    _going: dict[Branch, asyncio.Task[None]] = field(default_factory=dict)
    _first: bool = True  # whether the first rollouts are running; a gate compares only first rollouts

    async def run(self) -> None:
        """Samples the first rollouts and then the rollouts that branch from them. If the gate stops the group, sampling
        ends early.
        """
        playing, tree = self.playing, self.tree
        async with playing.limit.of(self.count, self):
            first = await playing.start(tree, -1, self.count)
            await self._run_branches(first)
        self._first = False
        if tree.turns and not tree.stopped:
            tree.stopped = playing.gate.at_end(tree)
        if tree.turns and not tree.stopped:
            if not playing.schedule.repeats:
                sort_played_turns(tree, first)
            branches = await playing.expand(self)
            async with playing.limit.of(sum(branches.values()), self):
                # at once: the numbers of the rollouts must not depend on how fast the environment opens episodes
                begun = await asyncio.gather(*(playing.start(tree, turn, count) for turn, count in branches.items()))
                await self._run_branches([branch for each in begun for branch in each])
        playing.schedule.leave(self)

    async def goes_on(self, branch: Branch) -> bool:
        """Whether the rollout may take another turn. Waits for the gate's decision at its current step, if there is one."""
        branch.reached = branch.depth
        self._ask_gate(branch)
        if self._waits_for_gate(branch.depth):
            self._held[branch] = asyncio.get_running_loop().create_future()
            await self._held[branch]
        return not self.tree.stopped

    def _ask_gate(self, branch: Branch) -> None:
        if not self._first or self.tree.stopped:
            return
        reached = [other.reached for other in self._going]
        while self.asked < min(reached, default=0) and not self.tree.stopped:
            self.asked += 1
            self.tree.stopped = self.playing.gate(self.tree, self.asked)
        step = max(reached, default=0)
        if not self._waits_for_gate(step):
            held, self._held = self._held, {}
            for waits in held.values():
                waits.set_result(None)
            if self.tree.stopped:
                for other, task in self._going.items():
                    if other is not branch and other not in held:
                        task.cancel()

    def _waits_for_gate(self, step: int) -> bool:
        """Whether rollouts that have reached ``step`` must wait for the gate's decision, because turns that they took
        meanwhile might be wasted. With the schedule ``rounds`` all rollouts wait for the slowest one anyway.
        """
        waits = self._first and not self.tree.stopped and not self.playing.schedule.repeats
        return waits and step > self.asked and self.playing.gate.looks_at(step)

    async def _run_branches(self, branches: Sequence[Branch]) -> None:
        if not branches:
            return
        for branch in branches:
            self.playing.schedule.enter(branch.number)
            self._going[branch] = asyncio.create_task(self._run_branch(branch))
        tasks = list(self._going.values())
        self.playing.schedule.leave(self)  # the group counts as running again when the last rollout ends
        await asyncio.gather(*tasks)

    async def _run_branch(self, branch: Branch) -> None:
        try:
            await self.playing.roll_out(branch, self)
        except asyncio.CancelledError:
            if not self.tree.stopped:
                raise
        finally:
            del self._going[branch]
        if self._going:
            self._ask_gate(branch)
        else:
            self.playing.schedule.enter(self)
        self.playing.schedule.leave(branch.number)


def sort_played_turns(tree: RolloutTree, branches: Sequence[Branch]) -> None:
    """Sorts the turns of a tree's first rollouts by depth and then by rollout, because the index of a turn is part of the
    seed of rollouts that branch there and must not depend on timing.
    """
    written = [(place, branch.branch, turn) for branch in branches for place, turn in enumerate(branch.turns)]
    order = [turn for _, _, turn in sorted(written)]
    place_of = {turn: place for place, turn in enumerate(order)} | {-1: -1}
    tree.turns[:] = [tree.turns[turn] for turn in order]
    for turn in tree.turns:
        turn.parent = place_of[turn.parent]
    tree.invalid = {place_of[turn] for turn in tree.invalid}


# -- the rollouts of one call ------------------------------------------------------------------------------------------


OnReply = Callable[[State, Sequence[int]], None]
"""A callback that gets a state and the token ids of the single action that was sampled there."""

OnTree = Callable[[RolloutTree], None]


@dataclass(eq=False)
class Playing:
    """Samples the rollouts of one call of ``Player.play``, where the arguments are explained."""

    player: Player
    allocator: Allocator
    gate: Gate
    key: object
    on_turns: Callable[[int], None]
    on_reply: OnReply | None
    on_tree: OnTree | None

    def __post_init__(self) -> None:
        player = self.player
        self.engine, self.tally = player.engine, player.tally
        self.local = player.max_turns == 1
        threads = player.environment_threads if player.environment.waits else 0
        together = player.environment.together
        if self.local and together is not None:
            threads = min(threads, together)  # each verifier may hold a process
        self.answers = EnvironmentCalls(threads, player.environment_seconds, player.lock)
        self.schedule = schedule_of(player.engine, player.sampling, self.on_turns)
        self.limit = RolloutLimit(None if self.local else together, self.schedule)
        self._number = numbers()
        self._opened: dict[int, None] = {}  # the engine's open nodes (stored prefixes), in order
        self._ended: list[tuple[Group, asyncio.Future[Mapping[int, int]]]] = []  # groups that wait for the allocator

    async def run(self, trees: Sequence[RolloutTree], counts: Sequence[int]) -> None:
        """Samples every tree to its end. ``counts`` are the numbers of rollouts that start at the roots."""
        groups = [Group(self, n, tree, count) for n, (tree, count) in enumerate(zip(trees, counts, strict=True))]
        for group in groups:
            self.schedule.enter(group)
        together: asyncio.Future[Any] = asyncio.gather(*(asyncio.create_task(self._sample(group)) for group in groups))
        sampling: asyncio.Future[Any] = asyncio.create_task(self.schedule.run())
        try:
            await asyncio.wait([together, sampling], return_when=asyncio.FIRST_COMPLETED)
            if sampling.done():
                sampling.result()
            together.result()
        finally:
            self.answers.close()
            self.tally.cancelled += self.schedule.cancelled
        self.engine.close(list(self._opened))

    async def _sample(self, group: Group) -> None:
        await group.run()
        if self.on_tree is not None:
            self.on_tree(group.tree)

    async def roll_out(self, branch: Branch, group: Group) -> None:
        """Runs one rollout until its episode ends, its greatest length is reached, its group is stopped, or the
        environment has failed and no retry is left.
        """
        going = True
        while going:
            begin = self._begin_of(branch)
            try:
                action = await self.schedule.sample(Request(branch.number, branch.node, branch.seed(self.key), begin))
            except asyncio.CancelledError:
                self._close(branch.node)
                raise
            turn = self.record(branch, action.sample)
            try:
                going = await self.step(branch, turn, action.begun)
            except EnvironmentFault as error:
                going = await self.restart(branch, turn, error)
            going = going and await group.goes_on(branch)

    def record(self, branch: Branch, sample: Sample) -> Turn:
        text = self.player.chat.decode(sample.ids)
        version = self.engine.version
        turn = Turn(branch.parent, sample.ids, sample.logprobs, text, truncated=sample.truncated, version=version)
        branch.tree.turns.append(turn)
        branch.parent = len(branch.tree.turns) - 1
        branch.turns.append(branch.parent)
        branch.depth += 1
        self.tally.turns += 1
        self.tally.tokens += len(sample.ids)
        return turn

    async def step(self, branch: Branch, turn: Turn, begun: Any) -> bool:
        """Waits for the environment's answer to a turn, and returns whether the rollout may take another turn. The action
        of a rollout of one turn is judged without a step (PivotRL).
        """
        player, session = self.player, branch.session
        if self.local:
            turn.done = True
            await player.verdicts.judge(branch.tree.state, turn, self.answers, self._in_threads(branch.tree.state))
            return False
        assert session is not None
        turn.info["won"] = False  # this value stays if a gate stops the group before the environment answers
        answer = self.answers.wait(begun) if begun else self.answers.call(False, partial(session.step, turn.text))
        step: Step = await answer
        turn.observation, turn.reward, turn.done = step.observation, step.reward, step.done
        turn.info = {**step.info, "won": step.won}
        if step.messages:
            turn.info["role"] = step.messages[-1]["role"]
        if step.done or (player.max_turns is not None and branch.depth >= player.max_turns):
            return False
        anew = bool(step.conversation)
        if anew:
            seen = player.chat.prompt(step.conversation, tools_of(session))
            branch.length = len(seen)
        else:
            seen = player.chat.bridge(step.shown, turn.truncated)
            branch.length += len(turn.action_ids) + len(seen)
        if branch.length + player.sampling.max_tokens > player.max_length:
            return False
        turn.observation_ids, turn.anew = seen, anew
        if anew:
            self._close(branch.node)
            branch.node = self._open(self.engine.open(seen, near=branch.tree.state.task.id))
        else:
            self.engine.extend(branch.node, seen)
        return True

    # -- where rollouts begin ------------------------------------------------------------------------------------------

    async def start(self, tree: RolloutTree, turn: int, count: int) -> list[Branch]:
        """Starts ``count`` rollouts after a turn of the tree (-1: at its root), or fewer if the environment fails."""
        if count == 0:
            return []
        state = tree.state
        ids = tree.history(turn)
        actions = [*state.actions, *(tree.turns[t].text for t in tree.path(turn))]
        origin = self._open(self.engine.open(ids, near=state.task.id))
        first = len(tree.turns)  # greater than the number of any earlier branch at this turn
        branches = [
            Branch(tree, next(self._number), turn, first + place, origin, tuple(actions), len(ids))
            for place in range(count)
        ]
        if self._in_threads(state):
            opened = await asyncio.gather(*map(self._reached, branches))
            branches = [branch for branch, done in zip(branches, opened, strict=True) if done]
        else:
            for place, branch in enumerate(branches):
                if not await self._reached(branch):
                    self.tally.faults += count - place - 1  # the remaining rollouts would start from the same state
                    branches = branches[:place]
                    break
        for branch in branches:
            self._fork_node(branch)
        return branches

    async def restart(self, branch: Branch, turn: Turn, error: EnvironmentFault) -> bool:
        """Marks a turn at which the environment failed as invalid, and puts the rollout back at its anchor, the turn (or
        root) after which it started. Returns False if no retry is left.
        """
        branch.tree.invalid.add(branch.parent)
        turn.info["fault"] = str(error)
        if not await self._reached(branch, again=True):
            return False
        self._fork_node(branch)
        return True

    async def _reached(self, branch: Branch, again: bool = False) -> bool:
        """Copies the environment's episode at the rollout's anchor. Returns False if no retry is left."""
        task, episodes = branch.tree.state.task, self.player.episodes
        call = partial(self.answers.call, self._in_threads(branch.tree.state))
        while True:
            if again and branch.attempt == self.player.retries:
                self.tally.faults += 1
                return False
            branch.attempt += again
            self.tally.retries += again
            if self.local:
                return True
            try:
                async with self.answers.making(task, episodes.shared(task, branch.actions)):
                    branch.session = await episodes.after(task, branch.actions, call)
                return True
            except EnvironmentFault:
                again = True

    def _fork_node(self, branch: Branch) -> None:
        branch.node = self._open(self.engine.fork(branch.origin))
        branch.parent, branch.length = branch.anchor, branch.tokens
        branch.depth = branch.reached = len(branch.tree.path(branch.anchor))

    async def expand(self, group: Group) -> Mapping[int, int]:
        """Asks the allocator where a group branches: index of a turn -> number of rollouts that start after it."""
        branches: asyncio.Future[Mapping[int, int]] = asyncio.get_running_loop().create_future()
        self._ended.append((group, branches))
        if len(self._ended) == 1:
            self.schedule.when_idle(self._expand)
        self.schedule.leave(group)
        return await branches

    def _expand(self) -> None:
        """Asks the allocator about all waiting groups in one call, so that the predictor needs only one pass."""
        ended, self._ended = sorted(self._ended, key=lambda each: each[0].number), []
        try:
            branches_of = self.allocator.expand([group.tree for group, _ in ended])
        except Exception as error:  # raised in a waiting group, because the event loop would only log it
            ended[0][1].set_exception(error)
            return
        for (group, branches), counts in zip(ended, branches_of, strict=True):
            self.schedule.enter(group)
            branches.set_result(counts)

    # -- the engine's nodes, and environment steps that begin while other actions are sampled --------------------------

    def _open(self, node: int) -> int:
        self._opened[node] = None
        return node

    def _close(self, node: int) -> None:
        if node in self._opened:
            del self._opened[node]
            self.engine.close([node])

    def _begin_of(self, branch: Branch) -> Begin | None:
        """A function that is called when the rollout's next action is complete: it asks the judge, or begins the
        environment's step. None if no function is needed.
        """
        state, session, on_reply = branch.tree.state, branch.session, self.on_reply
        if self.local:
            return None if on_reply is None else lambda sample: on_reply(state, sample.ids)
        if session is None or not self._in_threads(state):
            return None
        return lambda sample: self.answers.start(partial(session.step, self.player.chat.decode(sample.ids)), session)

    def _in_threads(self, state: State) -> bool:
        return self.answers.threads > 0 and bool(state.task.env) and waits(self.player.environment, state.task)


# -- the player --------------------------------------------------------------------------------------------------------


KEPT = 10_000  # greatest number of cached episodes, and of cached verdicts, that are kept between calls


@dataclass(slots=True)
class Tally:
    """The costs of rollouts. A turn is one action that the policy wrote."""

    turns: int = 0
    tokens: int = 0  # tokens that the policy wrote
    faults: int = 0  # rollouts that were lost because the environment failed
    retries: int = 0  # restarts of rollouts whose environment failed
    cancelled: int = 0  # actions that were being sampled when a gate stopped their group


@dataclass(slots=True)
class Player:
    """Plays rollouts with an engine and an environment.

    Args:
        max_turns: greatest number of turns from a state. None: rollouts continue to the end of the episode. With 1,
            actions are judged without a step of the environment (PivotRL's local rollouts), and the verdicts are
            ``info["functional"]`` and ``info["strict"]`` of the turn.
        max_length: greatest number of tokens of a history. A rollout that would exceed it ends unfinished.
        retries: how often a rollout whose environment failed is restarted from its starting state or turn, with new
            random draws. The failed attempt stays in the tree as an invalid leaf.
        environment_seconds, environment_threads: limits of the environment's answers
            (``rollouts.episodes.EnvironmentCalls``).
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
    dialogues: AnchoredVerdict = field(default_factory=AnchoredVerdict)
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
        on_turns: Callable[[int], None] = lambda count: None,
        on_reply: OnReply | None = None,
        on_tree: OnTree | None = None,
        among: Sequence[State] | None = None,
    ) -> list[RolloutTree]:
        """Samples rollouts that start at ``states``, and returns one rollout tree for each state.

        Args:
            allocator: decides how many rollouts start at each state, and where a tree branches after these first
                rollouts have ended.
            gate: decides when to stop a whole tree. It is asked at each step that all first rollouts of the tree have
                reached, until all of them have ended.
            key: names this collection, for example by run seed and iteration. Every random draw is seeded by this key
                together with state, branch and turn.
            on_turns: is called with the number of actions that have just been sampled, to show progress.
            on_reply: is called with each action as soon as it is complete, if ``max_turns`` is 1. A judge can then
                begin while other actions are still sampled. The draws do not depend on this callback.
            on_tree: is called with each tree when all its rollouts have ended.
            among: the states among which the allocator divides its budget, if other processes play some of them.
        """
        if len({state.id for state in states}) != len(states):
            raise ValueError("two states of one collection have the same id, but an id names a group: make ids unique")
        trees = [RolloutTree(state, version=self.engine.version) for state in states]
        # The longest histories come first, so that shorter ones of the same trajectory can share the engine's row.
        order = sorted(range(len(trees)), key=lambda i: -len(states[i].ids))
        shared = states if among is None else among
        counts = dict(zip((state.id for state in shared), allocator(shared), strict=True))
        playing = Playing(self, allocator, gate, key, on_turns, on_reply, on_tree)
        run_to_end(playing.run([trees[i] for i in order], [counts[states[i].id] for i in order]))
        if max(len(self.episodes.kept), len(self.verdicts.kept)) > KEPT:
            self.forget()
        return trees

    def forget(self) -> None:
        self.episodes.kept.clear()
        self.verdicts.kept.clear()

    def using(self, sampling: Sampling, max_turns: int | None) -> Player:
        """A copy of this player with other sampling settings and its own count of costs."""
        return replace(self, sampling=sampling, max_turns=max_turns, tally=Tally())
