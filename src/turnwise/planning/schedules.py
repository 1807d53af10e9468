"""Simulates collections and updates as discrete events: which of them waits for which under each schedule and
staleness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from turnwise.planning.decoding import Decoding, Request
from turnwise.planning.pace import Pace
from turnwise.planning.workload import Group, Turn

SHARE = 0.5  # relative speed of the engine and of the trainer while both use the same GPUs
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Site:
    """The machines that are simulated.

    Attributes:
        pace: the pace of one server.
        servers: number of servers that sample.
        places: most requests in progress on all servers together.
        sampling_gpus, training_gpus: GPUs of the servers and of the trainer.
        update: seconds of an update.
        sync: seconds for the synchronisation of the engine's weights before a collection.
        shared: whether servers and trainer use the same GPUs. While both work, each has half of its speed.
    """

    pace: Pace
    servers: int
    places: int
    sampling_gpus: int
    training_gpus: int
    update: float
    sync: float
    shared: bool = False

    @property
    def gpus(self) -> int:
        """Number of all GPUs."""
        return self.sampling_gpus if self.shared else self.sampling_gpus + self.training_gpus

    def full(self, rollouts: float) -> float:
        """Returns the engine's largest throughput in tokens per second, with at most ``rollouts`` requests if given.

        Between two points the throughput of a curve only rises or only falls, so that the maximum is at a point or at
        the end.
        """
        requests = min(self.places, rollouts)
        used = min(self.servers, requests)
        most = requests / used
        return used * max(self.pace.throughput(n) for n in (most, *(n for n, _ in self.pace.points if 1 <= n < most)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rules of a schedule.

    Attributes:
        free: whether a request joins the running batch at once. Otherwise a batch starts when every live rollout waits
            for one.
        staleness: how many collections may be ahead of the trainer.
        spanning: whether a collection may begin while rollouts of the previous one are still in progress.
    """

    free: bool
    staleness: int = 0
    spanning: bool = False

    def __str__(self) -> str:
        name = f"{'free' if self.free else 'rounds'}, staleness {self.staleness}"
        return name + (", spanning" if self.spanning else "")


@dataclass(slots=True)
class Played:
    """The result of a simulation.

    Attributes:
        staleness: the staleness of the schedule.
        updated: time in seconds at which each update ended.
        collected: time at which each collection ended.
        decoded: number of decoded tokens, including those of stopped groups.
        busy: pairs (start time, share of busy GPUs from then on). A server counts with its share of the full
            throughput.
    """

    staleness: int
    updated: list[float] = field(default_factory=list)
    collected: list[float] = field(default_factory=list)
    decoded: float = 0.0
    busy: list[tuple[float, float]] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Index of the first update that is timed. The updates before it train on collections that had no update to
        wait for.
        """
        return min(self.staleness, max(0, len(self.updated) - 2))

    @property
    def iteration(self) -> float:
        """Mean seconds from one update to the next, beginning at :attr:`first`. If there is a single update, its own
        time.
        """
        count = len(self.updated) - 1 - self.first
        return (self.updated[-1] - self.updated[self.first]) / count if count else self.updated[-1]


class _Rollout:
    __slots__ = ("group", "live", "taken", "turns")

    def __init__(self, turns: Sequence[Turn], group: _Group) -> None:
        self.turns, self.group = turns, group
        self.taken, self.live = 0, True  # turns that have been decoded


class _Group:
    def __init__(self, group: Group, collection: int) -> None:
        self.collection, self.stop = collection, group.stop
        self.rollouts = [_Rollout(turns, self) for turns in group.rollouts]
        self.before = len(self.rollouts)  # number of rollouts that have neither reached the gate's turn nor ended


def play(
    collections: Sequence[Sequence[Group]],
    site: Site,
    schedule: Schedule,
    on_update: Callable[[int], None] | None = None,
) -> Played:
    """Returns what happens from the start until the last collection has been trained on.

    Args:
        collections: the collections in the order in which they are trained on.
        site: the machines.
        schedule: the rules.
        on_update: is called with the number of finished updates after each one, for a progress bar.
    """
    return _Run(collections, site, schedule).play(on_update)


class _Run:
    def __init__(self, collections: Sequence[Sequence[Group]], site: Site, schedule: Schedule) -> None:
        self.collections, self.site, self.schedule = collections, site, schedule
        self.engine: Decoding[_Rollout] = Decoding(site.pace, site.servers, site.places)
        self.full = site.full(site.places)
        self.played = Played(schedule.staleness)
        self.now, self.training = 0.0, NEVER  # remaining seconds of the update; NEVER: the trainer waits
        # times at which rollouts continue: answered, or new weights loaded
        self.ready: list[tuple[float, int, _Rollout]] = []
        self.count = self.begun = self.loaded = 0
        self.left: list[int] = []  # number of live rollouts of each collection
        self.waiting: list[_Rollout] = []  # in rounds only: rollouts that wait for the next batch
        self.under_way = 0  # in rounds only: rollouts that do not wait for the next batch yet

    def play(self, on_update: Callable[[int], None] | None) -> Played:
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
                if on_update is not None:
                    on_update(len(self.played.updated))
        self.played.decoded = self.engine.decoded
        return self.played

    def _begin(self) -> None:
        """Starts the next update and the next collection if nothing makes them wait."""
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
        """Continues a rollout whose environment has answered, or whose weights are loaded: the rollout ends or asks for
        its next reply.
        """
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
            # otherwise it waits for its group, which the gate will stop
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
        """Stops a group as its gate does, once, when all of its rollouts have reached the gate's turn or have ended."""
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
        sampling = min(
            1.0, self.engine.throughput() / self.full
        )  # a measured curve may fall beyond some number of requests
        if site.shared:
            busy = 1.0 if training else sampling
        else:
            busy = (site.sampling_gpus * sampling + site.training_gpus * training) / site.gpus
        if not self.played.busy or self.played.busy[-1][1] != busy:
            self.played.busy.append((self.now, busy))
