"""An engine whose samples are stored on disk, so that a killed collection need not be drawn again.

All calls for histories, forks and samples pass through here to the inner engine, which samples. A request is identified
by its seed and its history. As long as a resumed collection asks only for stored samples, the inner engine is not
called; the calls are recorded. When the first request comes whose sample is not stored, the recorded calls are
replayed. There are two ways to do so:

    exact   The engine samples the stored actions once more, in the same batches. The last digits of a log-prob depend
            on which tokens are computed together, so only this equals an uninterrupted run bit for bit.
    quick   The engine gets the stored actions as tokens of the history and computes them in one pass. Samples drawn
            later may differ in the last digits of their log-probs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from turnwise.engines.engine import Engine, Sample, Sampling, Told
from turnwise.engines.spool import Key, Spool, digest
from turnwise.engines.staged import stage


class Spooled:
    """Stores the samples of an engine in spools and returns stored samples instead of drawing them again.

    Args:
        engine: samples what is not stored.
        spools: files for samples. Versions use them in turn, so with n files each is kept for n - 1 further versions.
        exact: see the module's docstring. True is useless with an engine whose numbers depend on what shares a batch,
            such as a server.
        tell: is called with one line of information for the user.
    """

    def __init__(self, engine: Engine, spools: Sequence[Spool], exact: bool, tell: Callable[[str], None]) -> None:
        self.engine, self.spools, self.exact, self.tell = engine, spools, exact, tell
        self.version = engine.version
        self.schedule, self.served = getattr(engine, "schedule", "rounds"), getattr(engine, "served", False)
        self._spool = spools[0]
        self._earlier: dict[int, dict[Key, Sample]] = {}  # by version: the samples that an earlier start stored
        self._told: set[int] = set()  # versions about which the user was informed
        self.tally: Counter[str] = Counter()  # ``restored``: samples not drawn again; ``spool_seconds``: for storing
        self._begin({})

    def _begin(self, known: dict[Key, Sample]) -> None:
        self._known = known
        late = bool(known) and self.schedule == "rounds"
        self._unheard: list[tuple[Any, ...]] | None = [] if late else None  # recorded calls; None: pass them on
        self._inner: dict[int, int] = {}  # node -> the inner engine's node
        self._digest: dict[int, int] = {}  # node -> digest of its history
        self._next = 0

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights to sample from. Samples that an earlier start drew from them are read from the spool.

        Raises:
            OSError: the spool cannot be written.
        """
        self.engine.load_weights(model, version)
        self._loaded(version)

    def stage(self, model: Any, version: int) -> Callable[[], None]:
        """Copies weights now and returns a function that loads them later (:func:`turnwise.engines.staged.stage`)."""
        load = stage(self.engine, model, version)

        def both() -> None:
            load()
            self._loaded(version)

        return both

    def _loaded(self, version: int) -> None:
        self.version = version
        self._spool = self.spools[version % len(self.spools)]
        if version not in self._earlier:  # several collections may use one version and sample at the same time
            self._earlier = {version: self._spool.begin(version)}
        self._begin(self._earlier[version])
        if self._known and version not in self._told:
            self._told.add(version)
            self.tell(f"resuming the collection of policy {version}: {len(self._known):,} stored actions are used")

    @contextmanager
    def held(self) -> Iterator[Spooled]:
        """Yields a view that keeps its adapter (``VllmEngine.held``) and stores samples under its version."""
        inner: Any = self.engine
        with inner.held() as engine:
            view = copy(self)
            view.engine = engine
            view._begin(self._known)
            yield view

    def report(self) -> dict[str, float]:
        """Returns the inner engine's report, with ``restored`` and ``spool_seconds`` (see ``tally``)."""
        return {**self.engine.report(), **{name: self.tally[name] for name in ("restored", "spool_seconds")}}

    def shutdown(self) -> None:
        self.engine.shutdown()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        node = self._new(digest(ids))
        self._say("open", node, list(ids), near)
        return node

    def fork(self, node: int) -> int:
        copy = self._new(self._digest[node])
        self._say("fork", node, copy)
        return copy

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._digest[node] = digest(ids, self._digest[node])
        self._say("extend", node, list(ids))

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            del self._digest[node]
        self._say("close", list(nodes))

    def _new(self, history: int) -> int:
        self._next += 1
        self._digest[self._next] = history
        return self._next

    def _say(self, *call: Any) -> None:
        if self._unheard is None:
            self._heed(*call)
        else:
            self._unheard.append(call)

    def _heed(self, what: str, *told: Any) -> None:
        match what:
            case "open":
                self._inner[told[0]] = self.engine.open(told[1], told[2])
            case "fork":
                self._inner[told[1]] = self.engine.fork(self._inner[told[0]])
            case "extend":
                self.engine.extend(self._inner[told[0]], told[1])
            case "close":
                self.engine.close([self._inner.pop(node) for node in told[0]])

    # -- samples -------------------------------------------------------------------------------------------------------

    def sample(
        self,
        nodes: Sequence[int],
        sampling: Sampling,
        seeds: Sequence[int],
        on_sample: Told | None = None,
        steps: int | None = None,
        written: Sequence[int] | None = None,
    ) -> list[Sample]:
        """Samples as :class:`turnwise.engines.engine.Engine` says.

        Parts of actions are not stored; see :meth:`keep`.
        """
        if steps is not None:
            inner: Any = self.engine
            return inner.sample([self._inner[n] for n in nodes], sampling, seeds, on_sample, steps, written)  # type: ignore[no-any-return]
        keys = [(seed, self._digest[node]) for seed, node in zip(seeds, nodes, strict=True)]
        known = [self._known.get(key) for key in keys]
        if self._unheard is not None:
            if None not in known:
                self._unheard.append(("sample", list(nodes), sampling, list(seeds), known))
                return self._given(nodes, known, on_sample)
            self._catch_up()
        if self.exact:
            return self._drawn(nodes, sampling, seeds, keys, on_sample)
        return self._missing(nodes, sampling, seeds, keys, known, on_sample)

    def _given(self, nodes: Sequence[int], known: Sequence[Sample | None], on_sample: Told | None) -> list[Sample]:
        samples = [sample for sample in known if sample is not None]
        self.tally["restored"] += len(samples)
        for place, sample in enumerate(samples):
            if on_sample is not None:
                on_sample(place, sample)
        self._grow(nodes, samples)
        return samples

    def _drawn(
        self,
        nodes: Sequence[int],
        sampling: Sampling,
        seeds: Sequence[int],
        keys: Sequence[Key],
        on_sample: Told | None,
    ) -> list[Sample]:
        """Samples and stores the whole batch, because a part of it would be computed in another shape."""
        samples = self.engine.sample([self._inner[node] for node in nodes], sampling, seeds, on_sample)
        self._keep(zip(keys, samples, strict=True))
        self._grow(nodes, samples)
        return samples

    def _missing(
        self,
        nodes: Sequence[int],
        sampling: Sampling,
        seeds: Sequence[int],
        keys: Sequence[Key],
        known: Sequence[Sample | None],
        on_sample: Told | None,
    ) -> list[Sample]:
        """Returns stored samples and draws the others; each of these is stored as soon as it is complete."""
        samples = [sample or Sample([], [], truncated=True) for sample in known]
        missing = [place for place, sample in enumerate(known) if sample is None]
        for place, sample in enumerate(known):
            if sample is not None:
                self.tally["restored"] += 1
                self.engine.extend(self._inner[nodes[place]], sample.ids)
                if on_sample is not None:
                    on_sample(place, sample)

        def told(i: int, sample: Sample) -> None:
            place = missing[i]
            self._keep([(keys[place], sample)])
            if on_sample is not None:
                on_sample(place, sample)

        if missing:
            inner = [self._inner[nodes[place]] for place in missing]
            drawn = self.engine.sample(inner, sampling, [seeds[place] for place in missing], told)
            for place, sample in zip(missing, drawn, strict=True):
                samples[place] = sample
        self._grow(nodes, samples)
        return samples

    # -- single actions, with engine.schedule=free ---------------------------------------------------------------------

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        """Samples one action with a served engine, without storing it."""
        inner: Any = self.engine
        sample: Sample = await inner.request(self._inner[node], sampling, seed)
        return sample

    def recall(self, node: int, seed: int) -> Sample | None:
        """Returns the action that an earlier start stored for this node and appends it, or returns None."""
        sample = self._known.get((seed, self._digest[node]))
        if sample is not None:
            self.tally["restored"] += 1
            self.engine.extend(self._inner[node], sample.ids)
            self._grow([node], [sample])
        return sample

    def keep(self, node: int, seed: int, sample: Sample) -> None:
        """Stores an action that the engine has appended to the node."""
        self._keep([((seed, self._digest[node]), sample)])
        self._grow([node], [sample])

    # ------------------------------------------------------------------------------------------------------------------

    def _grow(self, nodes: Sequence[int], samples: Sequence[Sample]) -> None:
        for node, sample in zip(nodes, samples, strict=True):
            if node in self._digest:  # the node may have been closed while it was sampled
                self._digest[node] = digest(sample.ids, self._digest[node])

    def _keep(self, samples: Any) -> None:
        began = time.perf_counter()
        self._spool.add((key, sample) for key, sample in samples if key not in self._known)
        self.tally["spool_seconds"] += time.perf_counter() - began  # type: ignore[assignment]

    # -- replay of recorded calls --------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        calls, self._unheard = self._unheard or [], None
        if self.exact and not self._repeat(calls, draw=True):
            self.tell("other actions were sampled than the stored ones, which are used as with rollout.spool=quick")
            self.engine.close(list(self._inner.values()))
            self._inner.clear()
            self._repeat(calls, draw=False)
        elif not self.exact:
            self._repeat(calls, draw=False)

    def _repeat(self, calls: Sequence[tuple[Any, ...]], draw: bool) -> bool:
        """Replays recorded calls on the engine.

        Returns False if ``draw`` and it samples other tokens than the stored ones.
        """
        for what, *told in calls:
            if what != "sample":
                self._heed(what, *told)
                continue
            nodes, sampling, seeds, samples = told
            inner = [self._inner[node] for node in nodes]
            if not draw:
                for node, sample in zip(inner, samples, strict=True):
                    self.engine.extend(node, sample.ids)
            elif [s.ids for s in self.engine.sample(inner, sampling, seeds)] != [s.ids for s in samples]:
                return False
        return True
