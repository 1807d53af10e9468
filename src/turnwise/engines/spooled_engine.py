"""Wraps an engine and stores its samples on disk, so that a resumed run need not sample them again.

All calls pass through this wrapper to the inner engine, which does the sampling. A stored sample is identified by its
seed and its history. With ``engine.schedule=rounds``, calls after a restart are only recorded as long as all requested
samples are stored; the inner engine is not called. At the first request for a sample that is not stored, the recorded
calls are replayed on the inner engine, in one of two ways:

    exact   The engine samples the stored actions once more, in the same batches. The last digits of a log-prob depend
            on which tokens are computed together. So only this way equals an uninterrupted run bit for bit.
    quick   The stored actions are appended to the histories as tokens, and the engine prefills them in one pass. Later
            samples may differ from those of an uninterrupted run in the last digits of their log-probs.

With ``engine.schedule=free``, nothing is recorded, and stored actions are always used as in ``quick``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from turnwise.engines.engine import Engine, Sample, Sampling, Told, repeat_call
from turnwise.engines.spool_file import Key, Spool, digest
from turnwise.engines.staged_weights import stage


class Spooled:
    """Stores the samples of an engine in files (spools), and returns stored samples instead of sampling them again.

    Args:
        spools: files for samples. Weight versions use the n files in turn, so version v's file is overwritten by
            version v + n.
        exact: how recorded calls are replayed. True: stored actions are sampled again in the same batches. False:
            stored actions are appended as tokens. True has no benefit with a server, whose batches differ in every run.
        tell: callback for messages to the user, one line each.
    """

    def __init__(self, engine: Engine, spools: Sequence[Spool], exact: bool, tell: Callable[[str], None]) -> None:
        self.engine, self.spools, self.exact, self.tell = engine, spools, exact, tell
        self.version = engine.version
        self.schedule, self.served = getattr(engine, "schedule", "rounds"), getattr(engine, "served", False)
        self._spool = spools[0]
        self._earlier: dict[int, dict[Key, Sample]] = {}  # version -> samples in the spool when it was opened
        self._told: set[int] = set()  # versions for which the user was told that stored samples are used
        self.tally: Counter[str] = Counter()  # ``restored``: number of reused samples; ``spool_seconds``: storing time
        self._begin({})

    def _begin(self, known: dict[Key, Sample]) -> None:
        self._known = known
        late = bool(known) and self.schedule == "rounds"
        self._unheard: list[tuple[Any, ...]] | None = [] if late else None  # recorded calls; None: no recording
        self._inner: dict[int, int] = {}  # node -> the inner engine's node
        self._digest: dict[int, int] = {}  # node -> digest of its history
        self._next = 0

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights that are sampled from, and reads this version's stored samples from its spool.

        Raises:
            OSError: the spool cannot be read or written.
        """
        self.engine.load_weights(model, version)
        self._loaded(version)

    def stage(self, model: Any, version: int) -> Callable[[], None]:
        """Copies the weights now and returns a function that loads them later (see ``engines.staged_weights``)."""
        load = stage(self.engine, model, version)

        def both() -> None:
            load()
            self._loaded(version)

        return both

    def _loaded(self, version: int) -> None:
        self.version = version
        self._spool = self.spools[version % len(self.spools)]
        if version not in self._earlier:  # several batches of rollouts may use one version at the same time
            self._earlier = {version: self._spool.begin(version)}
        self._begin(self._earlier[version])
        if self._known and version not in self._told:
            self._told.add(version)
            self.tell(
                f"resuming the rollouts of policy version {version}: {len(self._known):,} stored actions are used"
            )

    @contextmanager
    def held(self) -> Iterator[Spooled]:
        """Yields a view for one collection (see ``VllmEngine.held``), which stores actions in the current spool."""
        inner: Any = self.engine
        with inner.held() as engine:
            view = copy(self)
            view.engine = engine
            view._begin(self._known)
            yield view

    def report(self) -> dict[str, float]:
        """Returns the inner engine's metrics, ``restored`` (number of reused samples) and ``spool_seconds``."""
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
            repeat_call(self.engine, self._inner, *call)
        else:
            self._unheard.append(call)

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
        """Samples one action per node (see :class:`turnwise.engines.engine.Engine`).

        With ``steps``, only parts of actions are sampled, and not stored; :meth:`keep` stores whole actions.
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
        if not self.exact:
            return self._missing(nodes, sampling, seeds, keys, known, on_sample)
        # The whole batch is sampled and stored, because a smaller batch could change the last digits of log-probs.
        samples = self.engine.sample([self._inner[node] for node in nodes], sampling, seeds, on_sample)
        self._keep(zip(keys, samples, strict=True))
        self._grow(nodes, samples)
        return samples

    def _given(self, nodes: Sequence[int], known: Sequence[Sample | None], on_sample: Told | None) -> list[Sample]:
        samples = [sample for sample in known if sample is not None]
        self.tally["restored"] += len(samples)
        for place, sample in enumerate(samples):
            if on_sample is not None:
                on_sample(place, sample)
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
        """Returns the stored samples, and draws the missing ones. Each drawn sample is stored once it is complete."""
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
        """Samples one action with an inner engine that uses servers. Only :meth:`keep` stores the action."""
        inner: Any = self.engine
        sample: Sample = await inner.request(self._inner[node], sampling, seed)
        return sample

    def recall(self, node: int, seed: int) -> Sample | None:
        """Appends the stored action for this history and seed to the node and returns it; None: none is stored."""
        sample = self._known.get((seed, self._digest[node]))
        if sample is not None:
            self.tally["restored"] += 1
            self.engine.extend(self._inner[node], sample.ids)
            self._grow([node], [sample])
        return sample

    def keep(self, node: int, seed: int, sample: Sample) -> None:
        """Stores an action that the inner engine has already appended to the node."""
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
            self.tell(
                "new samples differ from the stored actions; stored actions are used, as with rollout.spool=quick"
            )
            self.engine.close(list(self._inner.values()))
            self._inner.clear()
            self._repeat(calls, draw=False)
        elif not self.exact:
            self._repeat(calls, draw=False)

    def _repeat(self, calls: Sequence[tuple[Any, ...]], draw: bool) -> bool:
        """Replays recorded calls on the inner engine.

        With ``draw``, stored actions are sampled again, and the result is False if other tokens are sampled. Otherwise
        stored actions are appended as tokens.
        """
        for what, *told in calls:
            if what != "sample":
                repeat_call(self.engine, self._inner, what, *told)
                continue
            nodes, sampling, seeds, samples = told
            inner = [self._inner[node] for node in nodes]
            if not draw:
                for node, sample in zip(inner, samples, strict=True):
                    self.engine.extend(node, sample.ids)
            elif [s.ids for s in self.engine.sample(inner, sampling, seeds)] != [s.ids for s in samples]:
                return False
        return True
