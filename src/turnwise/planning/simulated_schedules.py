"""Simulates sampling and training as discrete events. A schedule says which collections (batches of rollouts for one
update) and updates wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from turnwise.planning.simulated_engine import Decoding, Request, Site
from turnwise.planning.simulated_rollouts import Group, Turn

SHARE = 0.5  # while engine and trainer use the same GPUs, each runs at this fraction of its normal speed
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rules by which collections (batches of rollouts for one update) and updates wait for each other.

    Attributes:
        free: whether a request joins the running batch at once (continuous batching). Otherwise a batch starts only
            when every unfinished rollout waits for its next reply.
        staleness: number of collections by which sampling may be ahead of training.
        spanning: whether a collection may begin while rollouts of the previous collection are still in progress.
    """

    free: bool
    staleness: int = 0
    spanning: bool = False

    def __str__(self) -> str:
        name = f"{'free' if self.free else 'rounds'}, staleness {self.staleness}"
        return name + (", spanning" if self.spanning else "")


@dataclass(slots=True)
class Played:
    """The simulated times and token counts of a run.

    Attributes:
        staleness: the staleness of the schedule (:class:`Schedule`).
        updated: for each update, the time in seconds at which the update ended.
        collected: for each collection, the time in seconds at which the collection ended.
        decoded: number of decoded tokens, including the tokens of groups that a gate stopped.
        busy: pairs (start time in seconds, fraction of the GPUs that are busy from this time on). If the engine has
            60 % of its largest throughput, 60 % of the sampling GPUs count as busy.
    """

    staleness: int
    updated: list[float] = field(default_factory=list)
    collected: list[float] = field(default_factory=list)
    decoded: float = 0.0
    busy: list[tuple[float, float]] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Index of the update at whose end the timing of iterations begins. The time before is left out, because the
        first collections wait for no update.
        """
        return min(self.staleness, max(0, len(self.updated) - 2))

    @property
    def iteration(self) -> float:
        """Mean seconds from the end of an update to the end of the next update, beginning with the update
        :attr:`first`. If there is only one update, the value is the time at which this update ended.
        """
        count = len(self.updated) - 1 - self.first
        return (self.updated[-1] - self.updated[self.first]) / count if count else self.updated[-1]


class _Rollout:
    __slots__ = ("group", "live", "taken", "turns")

    def __init__(self, turns: Sequence[Turn], group: _Group) -> None:
        self.turns, self.group = turns, group
        self.taken, self.live = 0, True  # number of turns whose replies have been decoded


class _Group:
    def __init__(self, group: Group, collection: int) -> None:
        self.collection, self.stop = collection, group.stop
        self.rollouts = [_Rollout(turns, self) for turns in group.rollouts]
        self.before = len(self.rollouts)  # number of rollouts that have neither reached the gate's turn nor ended


def play(
    collections: Sequence[Sequence[Group]],
    site: Site,
    schedule: Schedule,
    on_update: Callable[[], None] = lambda: None,
) -> Played:
    """Simulates a run from its start until the end of the last update, and returns the times and token counts.

    Args:
        collections: the groups of each collection, in the order of training.
        on_update: function that is called after each update.
    """
    return _ScheduledRun(collections, site, schedule).play(on_update)


class _ScheduledRun:
    def __init__(self, collections: Sequence[Sequence[Group]], site: Site, schedule: Schedule) -> None:
        self.collections, self.site, self.schedule = collections, site, schedule
        self.engine: Decoding[_Rollout] = Decoding(site.pace, site.servers, site.places)
        self.full = site.full(site.places)
        self.played = Played(schedule.staleness)
        self.now, self.training = 0.0, NEVER  # remaining seconds of the update; NEVER: the trainer waits
        # (time, order, rollout): the time at which the environment of a rollout has answered, or at which the engine
        # has loaded new weights
        self.ready: list[tuple[float, int, _Rollout]] = []
        self.count = self.begun = self.loaded = 0
        self.left: list[int] = []  # number of unfinished rollouts of each collection
        self.waiting: list[_Rollout] = []  # waiting for the next batch, if the schedule is not free
        self.under_way = 0  # number of unfinished rollouts that are not in ``waiting``, if the schedule is not free

    def play(self, on_update: Callable[[], None]) -> Played:
        while len(self.played.updated) < len(self.collections):
            self._begin()
            self._note()
            both = self.site.shared and self.training < NEVER and self.engine.running > 0
            speed = SHARE if both else 1.0
            written, trained = self.engine.next_end(speed), self.now + self.training / speed
            answered = self.ready[0][0] if self.ready else NEVER
            then = min(written, trained, answered)
            if self.training < NEVER:
                self.training -= (then - self.now) * speed
            self.engine.advance(then, speed)
            self.now = then
            if then == written:
                self._written(self.engine.take().owner)
            elif then == answered:
                self._answered(heappop(self.ready)[2])
            else:
                self.training = NEVER
                self.played.updated.append(then)
                on_update()
        self.played.decoded = self.engine.decoded
        return self.played

    def _begin(self) -> None:
        """Starts the next update if its collection is complete, and the next collection if the schedule allows it."""
        updates = len(self.played.updated)
        if self.training == NEVER and updates < self.begun and self.left[updates] == 0:
            self.training = self.site.update
        after = self.begun == 0 or self.schedule.spanning or self.left[-1] == 0
        if self.begun == len(self.collections) or not after or updates < self.begun - self.schedule.staleness:
            return
        rollouts = [one for group in self.collections[self.begun] for one in _Group(group, self.begun).rollouts]
        self.left.append(len(rollouts))
        self.begun += 1
        self.under_way += len(rollouts)
        loading = self.site.sync if updates > self.loaded else 0.0
        self.loaded = updates
        for rollout in rollouts:
            self._ready_in(loading, rollout)

    def _ready_in(self, seconds: float, rollout: _Rollout) -> None:
        self.count += 1
        heappush(self.ready, (self.now + seconds, self.count, rollout))

    def _written(self, rollout: _Rollout) -> None:
        rollout.taken += 1
        self._ready_in(rollout.turns[rollout.taken - 1][1], rollout)

    def _answered(self, rollout: _Rollout) -> None:
        """Continues a rollout after its environment has answered, or after the engine has loaded new weights."""
        if not rollout.live:
            return  # its group was stopped in the meantime
        if rollout.taken == len(rollout.turns):
            self._end(rollout)
        group = rollout.group
        if group.stop is not None and (
            rollout.taken == group.stop or (not rollout.live and rollout.taken < group.stop)
        ):
            group.before -= 1
        if self.schedule.free:
            self._look(group)
            # a rollout that has reached the gate's turn waits until the gate stops its group
            if rollout.live and rollout.taken != group.stop:
                self._ask(rollout)
        else:
            self.under_way -= 1
            if rollout.live:
                self.waiting.append(rollout)
            if self.under_way == 0:
                self._next_batch()

    def _next_batch(self) -> None:
        for group in {id(one.group): one.group for one in self.waiting}.values():
            self._look(group)
        batch, self.waiting = [one for one in self.waiting if one.live], []
        self.under_way = len(batch)
        for rollout in batch:
            self._ask(rollout)

    def _ask(self, rollout: _Rollout) -> None:
        self.engine.put(Request(rollout.turns[rollout.taken][0], rollout))

    def _look(self, group: _Group) -> None:
        """Ends the live rollouts of ``group`` once every rollout of it has ended or reached the turn ``group.stop``, at
        which a gate stops the group. Does nothing if no gate stops the group (None).
        """
        if group.stop is None or group.before:
            return
        group.stop = None
        for rollout in group.rollouts:
            if rollout.live:
                self._end(rollout)

    def _end(self, rollout: _Rollout) -> None:
        rollout.live = False
        self.left[rollout.group.collection] -= 1
        if self.left[rollout.group.collection] == 0:
            self.played.collected.append(self.now)

    def _note(self) -> None:
        site, training = self.site, self.training < NEVER
        # limited to 1.0, because the throughput of a measured pace may fall when requests are added
        sampling = min(1.0, self.engine.throughput() / self.full)
        if site.shared:
            busy = 1.0 if training else sampling
        else:
            busy = (site.sampling_gpus * sampling + site.training_gpus * training) / site.gpus
        if not self.played.busy or self.played.busy[-1][1] != busy:
            self.played.busy.append((self.now, busy))
