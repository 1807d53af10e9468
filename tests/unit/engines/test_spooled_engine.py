"""Collections that are broken off and taken up again, against undisturbed ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.engines.spool_file import Spool
from turnwise.engines.spooled_engine import Spooled
from turnwise.engines.tree_engine import TreeEngine

MakeModel = Callable[..., Any]
END = 5
DRAWN = Sampling(temperature=0.8, max_tokens=6)
ROUNDS = 4


class Killed(Exception):
    """The process ends here."""


class Counting(TreeEngine):
    """Counts the samples that it draws and the calls that reach it; dies when it has told of ``left`` samples."""

    def __init__(self, left: int | None = None) -> None:
        super().__init__([END])
        self.left, self.drawn, self.opened, self.closed = left, 0, 0, 0

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        self.opened += 1
        return super().open(ids, near)

    def fork(self, node: int) -> int:
        self.opened += 1
        return super().fork(node)

    def close(self, nodes: Sequence[int]) -> None:
        self.closed += len(nodes)
        super().close(nodes)

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        def told(place: int, sample: Sample) -> None:
            if self.left is not None and self.drawn == self.left:
                raise Killed
            self.drawn += 1
            if on_sample is not None:
                on_sample(place, sample)

        return super().sample(nodes, sampling, seeds, told)


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(6, 97) for _ in range(count)]


def collection(engine: Any, told: list[tuple[int, list[int]]] | None = None) -> list[list[Sample]]:
    """Rounds of three groups, with forks, observations of their own and rollouts that end on the way."""
    rng = random.Random(7)
    nodes = []
    for group in range(3):
        origin = engine.open(ids(rng, rng.randrange(5, 40)), near=f"task {group}")
        nodes += [engine.fork(origin) for _ in range(3)]
    rounds = []
    for turn in range(ROUNDS):
        seeds = [1000 * turn + i for i in range(len(nodes))]
        tell = None if told is None else (lambda place, sample: told.append((place, sample.ids)))
        rounds.append(engine.sample(nodes, DRAWN, seeds, tell))
        for node in nodes:
            engine.extend(node, ids(rng, rng.randrange(1, 9)))
        engine.close(nodes[::4])
        nodes = [node for i, node in enumerate(nodes) if i % 4] + [engine.fork(nodes[1])]
    return rounds


def over(path: Path, model: Any, exact: bool = True, left: int | None = None, version: int = 2) -> Spooled:
    engine = Spooled(Counting(left), [Spool(path, "configuration")], exact, lambda line: None)
    engine.load_weights(model, version)
    return engine


def undisturbed(model: Any) -> list[list[Sample]]:
    engine = Counting()
    engine.load_weights(model, 2)
    return collection(engine)


def broken_off(path: Path, model: Any, exact: bool, left: int) -> None:
    engine = over(path, model, exact, left)
    with pytest.raises(Killed):
        collection(engine)
    engine.spools[0].close()


@pytest.fixture
def model(make_model: MakeModel) -> Any:
    return make_model("qwen3", True)


@pytest.mark.parametrize("exact", [True, False])
def test_an_undisturbed_collection_is_the_engines_own(tmp_path: Path, model: Any, exact: bool) -> None:
    assert collection(over(tmp_path / "a.bin", model, exact)) == undisturbed(model)


@pytest.mark.parametrize("left", [0, 5, 9, 17, 20, 26])
def test_exact_ends_bit_for_bit_where_an_undisturbed_collection_ends(tmp_path: Path, model: Any, left: int) -> None:
    whole = undisturbed(model)
    broken_off(tmp_path / "a.bin", model, True, left)
    engine = over(tmp_path / "a.bin", model)
    assert collection(engine) == whole
    rounds = [sum(map(len, whole[:n])) for n in range(ROUNDS)]
    assert engine.tally["restored"] == max(
        n for n in rounds if n <= left
    )  # whole rounds: at most one turn of each is lost


@pytest.mark.parametrize("exact", [True, False])
def test_a_collection_that_was_kept_whole_asks_the_engine_nothing(tmp_path: Path, model: Any, exact: bool) -> None:
    first = over(tmp_path / "a.bin", model, exact)
    whole = collection(first)
    first.spools[0].close()
    engine = over(tmp_path / "a.bin", model, exact)
    assert collection(engine) == whole
    inner: Any = engine.engine
    assert (inner.drawn, inner.opened, engine.report()["restored"]) == (0, 0, sum(map(len, whole)))


@pytest.mark.parametrize("left", [0, 5, 9, 17, 20, 26])
def test_quick_draws_only_what_nobody_had_finished(tmp_path: Path, model: Any, left: int) -> None:
    whole = undisturbed(model)
    broken_off(tmp_path / "a.bin", model, False, left)
    engine = over(tmp_path / "a.bin", model, exact=False)
    taken_up = collection(engine)
    inner: Any = engine.engine
    assert (engine.tally["restored"], inner.drawn) == (left, sum(map(len, whole)) - left)
    exactly = 0
    for here, there in zip(taken_up, whole, strict=True):
        for a, b in zip(here, there, strict=True):
            assert a.ids == b.ids and a.truncated == b.truncated
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
            exactly += a.logprobs == b.logprobs
    assert exactly >= left


@pytest.mark.parametrize("exact", [True, False])
def test_killed_again_and_again_it_ends_all_the_same(tmp_path: Path, model: Any, exact: bool) -> None:
    for left in (10, 3, 9):
        broken_off(tmp_path / "a.bin", model, exact, left)
    found = collection(over(tmp_path / "a.bin", model, exact))
    assert [[s.ids for s in turn] for turn in found] == [[s.ids for s in turn] for turn in undisturbed(model)]
    assert not exact or found == undisturbed(model)


def test_every_sample_is_told_once_wherever_it_comes_from(tmp_path: Path, model: Any) -> None:
    for exact, left in ((True, 12), (False, 12)):
        path = tmp_path / f"{exact}.bin"
        broken_off(path, model, exact, left)
        told: list[tuple[int, list[int]]] = []
        found = collection(over(path, model, exact), told)
        assert sorted(told) == sorted((i, s.ids) for turn in found for i, s in enumerate(turn))


def test_samples_of_other_weights_are_not_taken(tmp_path: Path, model: Any) -> None:
    broken_off(tmp_path / "a.bin", model, True, 20)
    engine = over(tmp_path / "a.bin", model, version=3)
    collection(engine)
    assert engine.tally["restored"] == 0


def test_a_world_that_answers_otherwise_is_not_given_samples_of_another_history(tmp_path: Path, model: Any) -> None:
    broken_off(tmp_path / "a.bin", model, False, 20)
    engine = over(tmp_path / "a.bin", model, exact=False)
    node = engine.open(ids(random.Random(7), 6))  # the first of the collection's seeds after another history
    (sample,) = engine.sample([node], DRAWN, [0])
    plain = Counting()
    plain.load_weights(model, 2)
    assert (
        engine.tally["restored"] == 0
        and sample.ids == plain.sample([plain.open(ids(random.Random(7), 6))], DRAWN, [0])[0].ids
    )


def test_where_other_actions_are_drawn_the_kept_ones_stand(tmp_path: Path, model: Any, make_model: MakeModel) -> None:
    """As on a machine with another arithmetic, here with other weights under the same version."""
    broken_off(tmp_path / "a.bin", model, True, 20)
    plain = Counting()
    plain.load_weights(model, 2)
    kept = collection(plain)
    said: list[str] = []
    engine = Spooled(Counting(), [Spool(tmp_path / "a.bin", "configuration")], True, said.append)
    engine.load_weights(make_model("qwen3", True, seed=1), 2)
    found = collection(engine)
    assert found[:2] == kept[:2] and [s.ids for s in found[2]] != [s.ids for s in kept[2]]
    assert any("rollout.spool=quick" in line for line in said)
    inner: Any = engine.engine
    assert inner.opened - inner.closed == plain.opened - plain.closed  # what was told twice is open once


def test_with_two_files_what_one_policy_drew_outlives_the_next_one(tmp_path: Path, model: Any) -> None:
    """A collection that was finished ahead is trained on while the next policy's is under way."""
    files = [tmp_path / "even.bin", tmp_path / "odd.bin"]

    def started() -> tuple[Spooled, list[str]]:
        said: list[str] = []
        return Spooled(Counting(), [Spool(path, "configuration") for path in files], True, said.append), said

    first, said = started()
    for version in (2, 2, 3):  # the first policy of a run collects twice
        first.load_weights(model, version)
        whole = collection(first)
    assert not said
    for spool in first.spools:
        spool.close()
    again, said = started()
    for version in (2, 3):
        again.load_weights(model, version)
        assert collection(again) == whole
        assert len(said) == version - 1 and f"policy version {version}:" in said[-1]
    inner: Any = again.engine
    assert inner.drawn == 0
