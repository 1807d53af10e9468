"""Runs the rollouts of one call of :meth:`turnwise.rollouts.player.Player.play` as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count as numbers
from typing import TYPE_CHECKING, Any

from turnwise.algo.allocators.allocator import Allocator
from turnwise.algo.gates.gate import Gate
from turnwise.engines.engine import Sample
from turnwise.engines.sampling_schedule import Begin, Request, schedule_of
from turnwise.env import EnvironmentFault, Step, tools_of, waits
from turnwise.rollouts.environment_steps import Answers
from turnwise.rollouts.group import Branch, Group
from turnwise.rollouts.live_limit import Room
from turnwise.types import RolloutTree, State, Turn

if TYPE_CHECKING:
    from turnwise.rollouts.player import Player

OnReply = Callable[[State, Sequence[int]], None]
"""A callback that gets a state and the token ids of the single action that was sampled there."""

OnTree = Callable[[RolloutTree], None]
"""A callback that gets a tree whose rollouts have all ended."""


class Live:
    """Samples the rollouts of one call of ``Player.play``, where the arguments are explained."""

    def __init__(
        self,
        player: Player,
        allocator: Allocator,
        gate: Gate,
        key: object,
        on_turns: Callable[[int], None] | None,
        on_reply: OnReply | None,
        on_tree: OnTree | None,
    ) -> None:
        self.player, self.engine, self.tally = player, player.engine, player.tally
        self.allocator, self.gate, self.key = allocator, gate, key
        self.on_reply, self.on_tree = on_reply, on_tree
        self.local = player.max_turns == 1
        threads = player.environment_threads if player.environment.waits else 0
        self.together: int | None = player.environment.together
        if self.local and self.together is not None:
            threads = min(threads, self.together)  # each verifier may hold a process
        self.answers = Answers(threads, player.environment_seconds, player.lock)
        self.schedule = schedule_of(player.engine, player.sampling, on_turns or (lambda actions: None))
        self._number = numbers()
        self._opened: dict[int, None] = {}  # the engine's open nodes (stored prefixes), in order
        self._ended: list[tuple[Group, asyncio.Future[Mapping[int, int]]]] = []  # groups that wait for the allocator

    async def run(self, trees: Sequence[RolloutTree], counts: Sequence[int]) -> None:
        """Samples every tree to its end. ``counts`` are the numbers of rollouts that start at the roots."""
        act = self.act if self.local else None
        room = Room(None if self.local else self.together, self.schedule)
        groups = [
            Group(number, tree, count, self.gate, self.schedule, self.start, self.roll_out, self.expand, room, act)
            for number, (tree, count) in enumerate(zip(trees, counts, strict=True))
        ]
        for group in groups:
            self.schedule.enter(group)
        tasks = [asyncio.create_task(self._sample(group)) for group in groups]
        sampling = asyncio.create_task(self.schedule.run())
        try:
            await _all(tasks, sampling)
        finally:
            self.answers.close()
            self.tally.cancelled += self.schedule.cancelled
            self.tally.cancelled_tokens += self.schedule.cancelled_tokens
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
                action = await self.schedule.sample(branch.number, branch.node, branch.seed(self.key), begin)
            except asyncio.CancelledError:
                self._close(branch.node)
                raise
            turn = self.record(branch, action.sample)
            try:
                going = await self.step(branch, turn, action.begun)
            except EnvironmentFault as error:
                branch.tree.invalid.add(branch.parent)
                turn.info["fault"] = str(error)
                going = await self.begin(branch, again=True)
            going = going and await group.goes_on(branch)

    def record(self, branch: Branch, sample: Sample) -> Turn:
        text = self.player.chat.decode(sample.ids)
        version = self.engine.version if sample.version is None else sample.version
        turn = Turn(branch.parent, sample.ids, sample.logprobs, text, truncated=sample.truncated, version=version)
        branch.tree.turns.append(turn)
        branch.parent = len(branch.tree.turns) - 1
        branch.turns.append(branch.parent)
        branch.depth += 1
        self.tally.turns += 1
        self.tally.tokens += len(sample.ids)
        return turn

    async def act(self, group: Group, branches: Sequence[Branch]) -> None:
        """Samples a group whose rollouts consist of one action each. The actions are judged without a step of the
        environment (PivotRL).
        """
        left = list(branches)
        while left:
            requests = [Request(b.number, b.node, b.seed(self.key), self._begin_of(b)) for b in left]
            actions = await self.schedule.sample_all(group, requests)
            turns = [self.record(branch, action.sample) for branch, action in zip(left, actions, strict=True)]
            for turn in turns:
                turn.done = True
            if self._in_threads(group.tree.state):
                judged = await asyncio.gather(*map(self.judged, left, turns))
            else:
                judged = [await self.judged(branch, turn) for branch, turn in zip(left, turns, strict=True)]
            left = [branch for branch, done in zip(left, judged, strict=True) if not done]

    async def judged(self, branch: Branch, turn: Turn) -> bool:
        """Judges a single action. Returns False if the environment failed and the rollout was restarted, else True."""
        state = branch.tree.state
        try:
            await self.player.verdicts.judge(state, turn, self.answers, self._in_threads(state))
        except EnvironmentFault as error:
            branch.tree.invalid.add(branch.parent)
            turn.info["fault"] = str(error)
            return not await self.begin(branch, again=True)
        return True

    async def step(self, branch: Branch, turn: Turn, begun: Any) -> bool:
        """Waits for the environment's answer to a turn, and returns whether the rollout may take another turn."""
        player, session = self.player, branch.session
        assert session is not None
        turn.info["won"] = False  # this value stays if a gate stops the group before the environment answers
        asked = self.answers.wait(begun) if begun else self.answers.call(False, partial(session.step, turn.text))
        step: Step = await asked
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
        """Starts ``count`` rollouts after a turn of the tree (-1: at its root), or fewer if the environment fails, and
        returns the rollouts.
        """
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

    async def begin(self, branch: Branch, again: bool = False) -> bool:
        """Puts a rollout at its anchor, the turn (or root) after which it starts: copies the environment's episode and
        the engine's node there. ``again`` says that the environment failed and the rollout is restarted. Returns False
        if no retry is left.
        """
        if not await self._reached(branch, again):
            return False
        self._fork_node(branch)
        return True

    async def _reached(self, branch: Branch, again: bool = False) -> bool:
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
        """Asks the allocator where a group branches after its first rollouts. Returns index of a turn -> number of
        rollouts that start after this turn.
        """
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
            found = self.allocator.expand([group.tree for group, _ in ended])
        except Exception as error:  # raised in a waiting group, because the event loop would only log it
            ended[0][1].set_exception(error)
            return
        for (group, branches), counts in zip(ended, found, strict=True):
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
        """Returns a function that asks the judge about the rollout's next action, or that begins the environment's
        step. The function must be called as soon as the action is complete. Returns None if no function is needed.
        """
        state, session, on_reply = branch.tree.state, branch.session, self.on_reply
        if self.local:
            return None if on_reply is None else lambda sample: on_reply(state, sample.ids)
        if session is None or not self._in_threads(state):
            return None
        return lambda sample: self.answers.start(partial(session.step, self.player.chat.decode(sample.ids)), session)

    def _in_threads(self, state: State) -> bool:
        """Returns whether the functions of the state's environment run in threads."""
        return self.answers.threads > 0 and bool(state.task.env) and waits(self.player.environment, state.task)


async def _all(tasks: Sequence[asyncio.Task[None]], endless: asyncio.Task[None]) -> None:
    together: asyncio.Future[Any] = asyncio.gather(*tasks)
    either: list[asyncio.Future[Any]] = [together, endless]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if endless.done():
        endless.result()
    together.result()
