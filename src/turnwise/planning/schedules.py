"""Plays collections and updates as a discrete-event simulation: who waits for whom under each schedule and staleness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from turnwise.planning.decoding import Decoding, Request
from turnwise.planning.pace import Pace
from turnwise.planning.workload import Group, Turn

SHARE = 0.5  # speed of engine and trainer, each, while both use the same GPUs
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Site:
    """Attributes:
    pace: of one server.
    servers: that sample.
    places: requests under way at all of them together.
    sampling_gpus, training_gpus: of the servers and of the trainer.
    update: seconds of an update.
    sync: seconds in which the engine takes new weights, before a collection.
    shared: whether servers and trainer use the same GPUs; while both work, each has half of its speed.
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
        """All GPUs."""
        return self.sampling_gpus if self.shared else self.sampling_gpus + self.training_gpus

    def full(self, rollouts: float) -> float:
        """Returns the most tokens a second of the engine with its places, or with ``rollouts`` where these are fewer.

        Between its points a curve's throughput rises or falls, so the most is at a point or at the end.
        """
        requests = min(self.places, rollouts)
        used = min(self.servers, requests)
        most = requests / used
        return used * max(self.pace.throughput(n) for n in (most, *(n for n, _ in self.pace.points if 1 <= n < most)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Attributes:
    free: whether a request joins what is being decoded; else a batch starts when every live rollout waits for one.
    staleness: collections that may be ahead of the trainer.
    spanning: whether a collection may begin while rollouts of the one before are still going on.
    """

    free: bool
    staleness: int = 0
    spanning: bool = False

    def __str__(self) -> str:
        name = f"{'free' if self.free else 'rounds'}, staleness {self.staleness}"
        return name + (", spanning" if self.spanning else "")


@dataclass(slots=True)
class Played:
    """Attributes:
    staleness: of the schedule.
    updated: time of the end of each update in seconds.
    collected: time of the end of each collection.
    decoded: tokens, those of stopped groups too.
    busy: (from this time on, share of the GPUs that are busy); a server counts by its share of the engine's full throughput.
    """

    staleness: int
    updated: list[float] = field(default_factory=list)
    collected: list[float] = field(default_factory=list)
    decoded: float = 0.0
    busy: list[tuple[float, float]] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Index of the update from which times are taken: those before it are of collections that had no update to wait for."""
        return min(self.staleness, max(0, len(self.updated) - 2))

    @property
    def iteration(self) -> float:
        """Seconds from one update to the next, from :attr:`first` on; of a single update its own time."""
        count = len(self.updated) - 1 - self.first
        return (self.updated[-1] - self.updated[self.first]) / count if count else self.updated[-1]


class _Rollout:
    __slots__ = ("group", "live", "taken", "turns")

    def __init__(self, turns: Sequence[Turn], group: _Group) -> None:
        self.turns, self.group = turns, group
        self.taken, self.live = 0, True  # turns that have been written


class _Group:
    def __init__(self, group: Group, collection: int) -> None:
        self.collection, self.stop = collection, group.stop
        self.rollouts = [_Rollout(turns, self) for turns in group.rollouts]
        self.before = len(self.rollouts)  # rollouts that have neither reached the gate's turn nor ended


def play(
    collections: Sequence[Sequence[Group]],
    site: Site,
    schedule: Schedule,
    on_update: Callable[[int], None] | None = None,
) -> Played:
    """Returns what happens from the start until the last collection has been trained on.

    Args:
        collections: in the order in which they are trained on.
        site: what samples and what trains.
        schedule: who waits for whom.
        on_update: is given the number of updates after each, for progress.
    """
    return _Run(collections, site, schedule).play(on_update)


class _Run:
    def __init__(self, collections: Sequence[Sequence[Group]], site: Site, schedule: Schedule) -> None:
        self.collections, self.site, self.schedule = collections, site, schedule
        self.engine: Decoding[_Rollout] = Decoding(site.pace, site.servers, site.places)
        self.full = site.full(site.places)
        self.played = Played(schedule.staleness)
        self.now, self.training = 0.0, NEVER  # seconds of training that are left; NEVER: the trainer waits
        self.ready: list[tuple[float, int, _Rollout]] = []  # when rollouts have been answered, or have their weights
        self.count = self.begun = self.loaded = 0
        self.left: list[int] = []  # live rollouts of each collection
        self.waiting: list[_Rollout] = []  # under rounds: for the next batch
        self.under_way = 0  # under rounds: rollouts that do not wait for the next batch yet

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
        """Begins the next update and the next collection, where nothing keeps them waiting."""
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
        """A rollout whose environment has answered, or whose weights are loaded, ends or asks for its next reply."""
        if not rollout.live:
            return  # its group was stopped meanwhile
        if rollout.taken == len(rollout.turns):
            self._end(rollout)
        group = rollout.group
        if group.stop is not None and (
            rollout.taken == group.stop or (not rollout.live and rollout.taken < group.stop)
        ):
            group.before -= 1
        if self.schedule.free:
            self._look(group)
            if rollout.live and rollout.taken != group.stop:  # else it waits for its group, which the gate will stop
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
        """The gate stops a group once, when all of its rollouts have reached its turn or have ended."""
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
