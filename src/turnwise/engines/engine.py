"""The interface of an engine, with which rollouts open, fork and extend histories and sample actions, and the
schedules, which decide when an engine samples: in batches for all live rollouts, or as soon as a rollout asks for an
action.

A rollout is a coroutine that awaits :meth:`Schedule.sample`. Rollouts that are collected together share an event loop
and one of these schedules:

    rounds    A batch starts when every live rollout waits for its next action. The batches are the same in every run,
              so the log-probs are equal to the last bit.
    eager     A batch starts as soon as rollouts wait, without those that wait for their environments.
    requests  Each action is a separate request to a server, which decodes it together with other requests.

Each action has its own random seed, so all schedules sample the same tokens, unless rounding differences in the
log-probs change a draw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


Told = Callable[[int, Sample], None]
"""A callback for complete samples. Its arguments are the sample's index in the batch and the sample."""


class Engine(Protocol):
    """Samples actions from a language model, as continuations of histories.

    A node is an integer that stands for a history of tokens. The engine keeps the keys and values of a node until the
    node is closed or the weights change. If a memory limit forces the engine to drop them earlier, it computes them
    again when they are needed. Two attributes are optional:

    - ``schedule`` is ``rounds`` (the default) or ``free``: no rollout waits for another one.
    - ``served = True`` means that the engine has a coroutine ``request(node, sampling, seed)``, which samples one
      action for a node, and with which ``free`` sends each action as a request of its own.
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
        """Sets the weights that are sampled from. All nodes are closed, and all keys and values dropped."""
        ...

    def report(self) -> Mapping[str, float]: ...

    def shutdown(self) -> None:
        """Releases resources outside this process, such as servers. The next :meth:`load_weights` opens them again."""
        ...


# -- schedules ---------------------------------------------------------------------------------------------------------


Named = Literal["rounds", "free"]

Begin = Callable[[Sample], Any]
"""A function that is called with an action once that action is complete. Other actions may still be sampled then."""


class Action(NamedTuple):
    """A complete action and the value that its callback ``begin`` returned (None without a callback)."""

    sample: Sample
    begun: Any


class Request(NamedTuple):
    """A rollout's request for one action."""

    number: int  # of the rollout
    node: int
    seed: int
    begin: Begin | None = None


class Schedule:
    """Decides when requested actions are sampled.

    Args:
        on_actions: is called with a number of actions when they have been sampled.
    """

    repeats = False  # whether actions are completed in the same order in every run of the same configuration

    def __init__(self, engine: Any, sampling: Sampling, on_actions: Callable[[int], None]) -> None:
        self.engine, self.sampling, self.on_actions = engine, sampling, on_actions
        self.cancelled = 0  # number of actions that were cancelled during sampling because their rollout ended

    async def sample(self, request: Request) -> Action:
        """Cancelling this coroutine cancels the request. The caller must then close the node."""
        raise NotImplementedError

    def enter(self, member: object) -> None:
        """Marks ``member`` as running, until it calls :meth:`leave` or waits for an action. A member is the number of a
        rollout, or a group.
        """

    def leave(self, member: object) -> None: ...

    def when_idle(self, call: Callable[[], None]) -> None:
        """Runs ``call`` once, soon. With :class:`Rounds`, it runs before the next batch, when no member is running."""
        asyncio.get_running_loop().call_soon(call)

    async def run(self) -> None:
        """Samples requested actions until this coroutine is cancelled. Errors of the engine are raised here."""
        await asyncio.get_running_loop().create_future()


class Rounds(Schedule):
    """Starts a batch when every live rollout waits for its next action. The engine samples in the calling thread."""

    repeats = True

    def __init__(self, engine: Any, sampling: Sampling, on_actions: Callable[[int], None]) -> None:
        super().__init__(engine, sampling, on_actions)
        self._running: set[object] = set()
        self._asked: dict[int, tuple[Request, asyncio.Future[Action]]] = {}  # by number of the rollout
        self._later: list[Callable[[], None]] = []
        self._idle = asyncio.Event()

    async def sample(self, request: Request) -> Action:
        answer: asyncio.Future[Action] = asyncio.get_running_loop().create_future()
        self._asked[request.number] = request, answer
        self.leave(request.number)
        try:
            return await answer
        finally:
            self._asked.pop(request.number, None)

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
            if not self.repeats:  # rollouts that begin or got an action at the same time ask before the batch starts
                await asyncio.sleep(0)
            self._idle.clear()
            if self._later:
                calls, self._later = self._later, []
                for call in calls:
                    call()
                if self._asked and not self._running:  # whoever asked in the same tick does not wait for another one
                    self._idle.set()
            elif self._asked:
                self._sample_batch()

    def _sample_batch(self) -> None:
        requests, answers = zip(*(self._asked[number] for number in sorted(self._asked)), strict=True)
        self._asked.clear()
        begun = [None] * len(requests)

        def told(place: int, sample: Sample) -> None:
            if (begin := requests[place].begin) is not None:
                begun[place] = begin(sample)

        listens = any(request.begin is not None for request in requests)
        nodes, seeds = [request.node for request in requests], [request.seed for request in requests]
        samples = self.engine.sample(nodes, self.sampling, seeds, told if listens else None)
        self.on_actions(len(requests))
        for request, answer, sample, value in zip(requests, answers, samples, begun, strict=True):
            if not answer.done():
                self.enter(request.number)
                answer.set_result(Action(sample, value))


class Eager(Rounds):
    """Starts a batch as soon as rollouts wait for their next actions, because no member ever counts as running."""

    repeats = False

    def enter(self, member: object) -> None: ...


class EngineRequests(Schedule):
    """Sends each action to a server as a separate request. The engine must have a coroutine ``request``."""

    async def sample(self, request: Request) -> Action:
        try:
            sample = await self.engine.request(request.node, self.sampling, request.seed)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.on_actions(1)
        return Action(sample, None if request.begin is None else request.begin(sample))


def schedule_of(engine: Any, sampling: Sampling, on_actions: Callable[[int], None]) -> Schedule:
    free = getattr(engine, "schedule", "rounds") == "free"
    kind = Rounds if not free else EngineRequests if getattr(engine, "served", False) else Eager
    return kind(engine, sampling, on_actions)
