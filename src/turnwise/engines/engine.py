"""The interface of an engine, with which rollouts open, fork and extend histories and sample actions, and the
schedules, which decide when an engine samples: in batches for all live rollouts, or as soon as a rollout asks for an
action.

A rollout is a coroutine that awaits :meth:`Schedule.sample`. Rollouts that are collected together share an event loop
and one of these schedules:

    rounds    A batch starts when every live rollout waits for its next action. The batches are the same in every run,
              so the log-probs are equal to the last bit.
    slices    The engine in this process repeatedly samples a few tokens for all waiting rollouts. New requests join
              between two slices.
    requests  Each action is a separate request to a server, which decodes it together with other requests.

Each action has its own random seed, so all schedules sample the same tokens, unless rounding differences in the
log-probs change a draw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from annotated_types import Ge, Interval


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for sampling actions. ``temperature=0`` means greedy decoding."""

    temperature: float = 1.0
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Ge(0)] = 0  # 0: no limit
    min_p: Annotated[float, Interval(ge=0, le=1)] = 0.0
    max_tokens: Annotated[int, Interval(ge=1, le=2**20)] = 24

    def __post_init__(self) -> None:
        if self.temperature and not 0.001 <= self.temperature <= 100:
            raise ValueError(f"temperature must be 0 (greedy), or from 0.001 to 100, got {self.temperature}")


@dataclass(slots=True)
class Sample:
    """A sampled action: its token ids and their log-probs.

    The last token is the end-of-turn token, unless the action is truncated.
    """

    ids: list[int]
    logprobs: list[float]  # natural logarithms, for the distribution from which the tokens were sampled
    truncated: bool = False
    whole: bool = True  # False: this is only a part of an action (an engine may sample an action in several calls)


Told = Callable[[int, Sample], None]
"""A callback for complete samples. Its arguments are the sample's index in the batch and the sample."""


class Engine(Protocol):
    """Samples actions from a language model, as continuations of histories.

    A node is an integer that stands for a history of tokens. The engine keeps the keys and values of a node until the
    node is closed or the weights change. If a memory limit forces the engine to drop them earlier, it computes them
    again when they are needed. Two attributes are optional:

    - ``schedule`` is ``rounds`` (the default) or ``free``; ``engines.engine`` explains both. With ``free``,
      the engine must set ``served``, or its ``sample`` must accept ``steps`` and ``written`` as
      :class:`turnwise.engines.tree_engine.TreeEngine` does.
    - ``served = True`` means that the engine has a coroutine ``request(node, sampling, seed)``, which samples one
      action for a node.
    """

    version: int  # version of the loaded weights

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        """Returns a new node for the history ``ids``. Histories with a common prefix share its keys and values.

        ``near`` names the history's task. An engine with several processes keeps all histories of a task in one
        process, because they share long prefixes.
        """
        ...

    def fork(self, node: int) -> int: ...

    def extend(self, node: int, ids: Sequence[int]) -> None:
        """Appends tokens that the policy did not write, such as an observation, to the history of a node."""
        ...

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """Samples one action per node and appends it to the node.

        The sample of a node depends only on the node's history and seed, not on the other nodes of the batch.
        ``on_sample`` is called once for each sample as soon as it is complete, while other actions of the batch may
        still be sampled.
        """
        ...

    def close(self, nodes: Sequence[int]) -> None:
        """Closes nodes, and cancels actions that are being sampled for them if the engine supports this."""
        ...

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights that are sampled from and drops all stored keys and values."""
        ...

    def report(self) -> Mapping[str, float]: ...

    def shutdown(self) -> None:
        """Releases resources outside this process, such as servers. The next :meth:`load_weights` opens them again."""
        ...


# -- schedules ---------------------------------------------------------------------------------------------------------


Named = Literal["rounds", "free"]
SLICE = 32  # greatest number of tokens that one slice adds to each action

Begin = Callable[[Sample], Any]
"""A function that is called with an action once that action is complete. Other actions may still be sampled then."""


class Action(NamedTuple):
    """A complete action (``sample``) and the value that its callback ``begin`` returned (None without a callback)."""

    sample: Sample
    begun: Any


class Request(NamedTuple):
    """A rollout's request for one action. ``number`` is the rollout's number, ``seed`` the action's random seed."""

    number: int
    node: int
    seed: int
    begin: Begin | None = None


class Schedule(Protocol):
    """Decides when requested actions are sampled.

    ``cancelled`` counts the actions that were cancelled during sampling because their rollout ended.
    ``cancelled_tokens`` counts the tokens of these actions, without those that a server sampled, which are unknown.
    """

    repeats: bool  # whether actions are completed in the same order in every run of the same configuration
    cancelled: int
    cancelled_tokens: int

    async def sample(self, number: int, node: int, seed: int, begin: Begin | None = None) -> Action:
        """Samples the next action of rollout ``number`` at its node ``node``.

        Cancelling this coroutine cancels the request. The caller must then close the node.
        """
        ...

    async def sample_all(self, member: object, requests: Sequence[Request]) -> list[Action]:
        """Samples one action for each request of ``member``, which is a rollout or a group. One call is cheaper than
        one call of :meth:`sample` for each action.
        """
        ...

    def enter(self, member: object) -> None:
        """Marks ``member`` (a rollout or a group) as running, until it calls :meth:`leave` or waits for an action."""
        ...

    def leave(self, member: object) -> None: ...

    def when_idle(self, call: Callable[[], None]) -> None:
        """Runs the function ``call`` once, soon. With ``rounds``, the function runs before the next batch, when no
        member is running.
        """
        ...

    async def run(self) -> None:
        """Samples requested actions until this coroutine is cancelled. Errors of the engine are raised here."""
        ...


@dataclass(slots=True, eq=False)
class _Asked:
    number: int
    node: int
    seed: int
    answer: asyncio.Future[Any]
    begin: Begin | None = None
    begun: Any = None
    sample: Sample = field(default_factory=lambda: Sample([], [], whole=False))  # with slices: tokens so far
    member: object = None

    def add(self, piece: Sample) -> None:
        self.sample.ids += piece.ids
        self.sample.logprobs += piece.logprobs
        self.sample.truncated, self.sample.whole = piece.truncated, piece.whole


class Rounds:
    """Starts a batch when every live rollout waits for its next action.

    Args:
        engine: the engine, which samples each batch in the calling thread.
        sampling: the sampling settings of all actions.
        on_actions: callback that gets the number of actions of each batch after the batch was sampled.
    """

    repeats = True

    def __init__(self, engine: Engine, sampling: Sampling, on_actions: Callable[[int], None]) -> None:
        self.engine, self.sampling, self.on_actions = engine, sampling, on_actions
        self.cancelled = self.cancelled_tokens = 0  # no coroutine runs during a batch, so none can be cancelled
        self._running: set[object] = set()
        self._asked: dict[int, _Asked] = {}
        self._later: list[Callable[[], None]] = []
        self._idle = asyncio.Event()

    async def sample(self, number: int, node: int, seed: int, begin: Begin | None = None) -> Action:
        return (await self.sample_all(number, [Request(number, node, seed, begin)]))[0]

    async def sample_all(self, member: object, requests: Sequence[Request]) -> list[Action]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked = [_Asked(number, node, seed, answer, begin, member=member) for number, node, seed, begin in requests]
        self._asked.update({one.number: one for one in asked})
        self.leave(member)
        try:
            await answer  # all requests of this call are in the same batch, so they share one future
            return [Action(one.sample, one.begun) for one in asked]
        finally:
            for one in asked:
                self._asked.pop(one.number, None)

    def enter(self, member: object) -> None:
        self._running.add(member)

    def leave(self, member: object) -> None:
        self._running.discard(member)
        if not self._running:
            self._idle.set()

    def when_idle(self, call: Callable[[], None]) -> None:
        self._later.append(call)

    async def run(self) -> None:
        while True:
            await self._idle.wait()
            self._idle.clear()
            if self._later:
                calls, self._later = self._later, []
                for call in calls:
                    call()
            elif self._asked:
                self._sample_all()

    def _sample_all(self) -> None:
        batch = sorted(self._asked.values(), key=lambda asked: asked.number)
        self._asked.clear()

        def told(place: int, sample: Sample) -> None:
            begin = batch[place].begin
            batch[place].begun = None if begin is None else begin(sample)

        listens = any(asked.begin is not None for asked in batch)
        nodes, seeds = [asked.node for asked in batch], [asked.seed for asked in batch]
        samples = self.engine.sample(nodes, self.sampling, seeds, told if listens else None)
        self.on_actions(len(batch))
        for asked, sample in zip(batch, samples, strict=True):
            asked.sample = sample
            if not asked.answer.done():
                self.enter(asked.member)
                asked.answer.set_result(None)


class _Free:
    """Base class of the schedules in which no rollout waits for another: :class:`Slices` and :class:`Requests`."""

    repeats = False

    def __init__(self, engine: Any, sampling: Sampling, on_actions: Callable[[int], None]) -> None:
        self.engine, self.sampling, self.on_actions = engine, sampling, on_actions
        self.cancelled = self.cancelled_tokens = 0

    async def sample(self, number: int, node: int, seed: int, begin: Begin | None = None) -> Action:
        sample = await self._sample(number, node, seed)
        self.on_actions(1)
        return Action(sample, None if begin is None else begin(sample))

    async def sample_all(self, member: object, requests: Sequence[Request]) -> list[Action]:
        return list(await asyncio.gather(*(self.sample(*request) for request in requests)))

    async def _sample(self, number: int, node: int, seed: int) -> Sample:
        raise NotImplementedError

    def enter(self, member: object) -> None:
        """Does nothing, because no rollout waits for another rollout."""

    def leave(self, member: object) -> None:
        """Does nothing, because no rollout waits for another rollout."""

    def when_idle(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)


class Slices(_Free):
    """Samples up to ``SLICE`` tokens at a time for all waiting rollouts. New requests join at the next slice.

    The constructor has the same arguments as :class:`Rounds`. The engine's ``sample`` must accept ``steps``, with which
    it samples only a part of each action (see ``engines.tree_engine.TreeEngine.sample``).
    """

    def __init__(self, engine: Any, sampling: Sampling, on_actions: Callable[[int], None]) -> None:
        super().__init__(engine, sampling, on_actions)
        self._asked: dict[int, _Asked] = {}
        self._wanted = asyncio.Event()

    async def _sample(self, number: int, node: int, seed: int) -> Sample:
        asked = self._asked[number] = _Asked(number, node, seed, asyncio.get_running_loop().create_future())
        self._wanted.set()
        try:
            return await asked.answer
        except asyncio.CancelledError:
            self._asked.pop(number, None)
            self.cancelled += bool(asked.sample.ids)
            self.cancelled_tokens += len(asked.sample.ids)
            raise

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._sample_some(sorted(self._asked.values(), key=lambda asked: asked.number))
            if not self._asked:
                self._wanted.clear()
            for _ in range(2):  # rollouts that got an action send their next request, and cancelled rollouts leave
                await asyncio.sleep(0)

    def _sample_some(self, batch: list[_Asked]) -> None:
        written = [len(asked.sample.ids) for asked in batch]
        nodes, seeds = [asked.node for asked in batch], [asked.seed for asked in batch]
        pieces = self.engine.sample(nodes, self.sampling, seeds, steps=SLICE, written=written) if batch else []
        for asked, piece in zip(batch, pieces, strict=True):
            asked.add(piece)
            if piece.whole:
                del self._asked[asked.number]
                asked.answer.set_result(asked.sample)


class Requests(_Free):
    """Sends each action to a server as a separate request.

    The constructor has the same arguments as :class:`Rounds`. The engine must have a coroutine ``request``.
    """

    async def _sample(self, number: int, node: int, seed: int) -> Sample:
        try:
            return await self.engine.request(node, self.sampling, seed)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


def schedule_of(engine: Any, sampling: Sampling, on_actions: Callable[[int], None]) -> Schedule:
    """:class:`Rounds`, or with ``schedule=free`` :class:`Requests` if servers sample, else :class:`Slices`."""
    if getattr(engine, "schedule", "rounds") == "rounds":
        return Rounds(engine, sampling, on_actions)
    return (Requests if getattr(engine, "served", False) else Slices)(engine, sampling, on_actions)
