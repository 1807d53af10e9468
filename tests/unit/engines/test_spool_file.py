"""The spool's file: what was added is there, what is torn, damaged or of other weights is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from turnwise.engines.engine import Sample
from turnwise.engines.spool_file import Key, Spool, digest


def samples(count: int, seed: int = 0) -> dict[Key, Sample]:
    rng = random.Random(seed)
    made = {}
    for _ in range(count):
        length = rng.randrange(1, 9)
        sample = Sample(
            [rng.randrange(1 << 18) for _ in range(length)],
            [-rng.expovariate(1) for _ in range(length)],
            rng.random() < 0.5,
        )
        made[rng.getrandbits(64), rng.getrandbits(32)] = sample
    return made


def filled(path: Path, kept: dict[Key, Sample], of: str = "c", version: int = 3) -> bytes:
    spool = Spool(path, of)
    assert spool.begin(version) == {}
    for item in kept.items():
        spool.add([item])
    spool.close()
    return path.read_bytes()


def test_what_was_added_is_there_bit_for_bit_and_more_can_be_added(tmp_path: Path) -> None:
    kept, more = samples(20), samples(5, seed=1)
    filled(tmp_path / "folder" / "a.bin", kept)
    spool = Spool(tmp_path / "folder" / "a.bin", "c")
    assert spool.begin(3) == kept
    spool.add(more.items())
    spool.close()
    assert Spool(tmp_path / "folder" / "a.bin", "c").begin(3) == kept | more


def test_the_version_of_an_action_is_kept(tmp_path: Path) -> None:
    kept = {(1, 2): Sample([3], [-0.5]), (2, 2): Sample([4], [-0.25], version=0), (3, 2): Sample([], [], version=7)}
    filled(tmp_path / "a.bin", kept)
    found = Spool(tmp_path / "a.bin", "c").begin(3)
    assert {key: sample.version for key, sample in found.items()} == {(1, 2): None, (2, 2): 0, (3, 2): 7}


@pytest.mark.parametrize(("of", "version"), [("d", 3), ("c", 4)])
def test_what_belongs_to_another_configuration_or_other_weights_is_dropped(
    tmp_path: Path, of: str, version: int
) -> None:
    filled(tmp_path / "a.bin", samples(20))
    size = (tmp_path / "a.bin").stat().st_size
    assert Spool(tmp_path / "a.bin", of).begin(version) == {}
    assert (tmp_path / "a.bin").stat().st_size < size / 10
    assert Spool(tmp_path / "a.bin", "c").begin(3) == {}


def test_a_file_cut_anywhere_gives_the_records_before_the_cut(tmp_path: Path) -> None:
    kept = samples(6)
    data = filled(tmp_path / "a.bin", kept)
    found = []
    for cut in range(len(data) + 1):
        (tmp_path / "b.bin").write_bytes(data[:cut])
        spool = Spool(tmp_path / "b.bin", "c")
        known = spool.begin(3)
        assert list(known.items()) == list(kept.items())[: len(known)]
        found.append(len(known))
        rest = dict(list(kept.items())[len(known) :])
        spool.add(rest.items())
        spool.close()
        assert (tmp_path / "b.bin").read_bytes() == data
    assert found == sorted(found) and set(found) == set(range(7))


def test_a_damaged_byte_ends_what_is_read(tmp_path: Path) -> None:
    kept = samples(6)
    data = filled(tmp_path / "a.bin", kept)
    for place in range(len(data)):
        (tmp_path / "b.bin").write_bytes(data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :])
        known = Spool(tmp_path / "b.bin", "c").begin(3)
        assert len(known) < 6 and list(known.items()) == list(kept.items())[: len(known)]


def test_blanks_at_its_end_are_no_records(tmp_path: Path) -> None:
    """As a file system leaves them that had made the file longer when the power went."""
    kept = samples(6)
    data = filled(tmp_path / "a.bin", kept)
    for more in (1, 8, 4096):
        (tmp_path / "a.bin").write_bytes(data + bytes(more))
        spool = Spool(tmp_path / "a.bin", "c")
        assert spool.begin(3) == kept
        spool.close()
        assert (tmp_path / "a.bin").read_bytes() == data


def test_it_takes_no_more_than_its_limit(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.bin", "c", limit=200)
    spool.begin(0)
    for item in samples(50).items():
        spool.add([item])
    spool.close()
    assert 100 < (tmp_path / "a.bin").stat().st_size <= 200


def test_nothing_is_added_before_it_is_known_what_to(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="begin"):
        Spool(tmp_path / "a.bin", "c").add(samples(1).items())


def test_a_digest_does_not_depend_on_where_a_history_was_cut() -> None:
    assert digest([1, 2, 3, 400_000]) == digest([3, 400_000], digest([1, 2])) != digest([1, 2, 3, 4])
