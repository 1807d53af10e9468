from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.data.read_records import read_records
from turnwise.errors import InputError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(values), st.sampled_from([None, 1, "\t"]))
def test_an_array_gives_its_items(tmp_path, items, indent):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(items, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert [record for _, record in read_records(path)] == items


@pytest.mark.parametrize(
    "data",
    [b"[1,\n2", b"[1\n2]", b'[1,\n{"a": nope}]', b"[1, NaN]", b"[1]\n[2]", b"[" * 100_000, b"[1,]", b'["\xff"]'],
)
def test_a_broken_array_is_refused(tmp_path, data):
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"x\.json"):
        list(read_records(path))


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_the_bytes_told_are_those_of_the_file(tmp_path, kind):
    path = tmp_path / f"x.{kind}"
    rows = [{"id": str(i)} for i in range(700)]
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    told: list[int] = []
    assert [record for _, record in read_records(path, on_bytes=told.append)] == rows
    assert sum(told) == path.stat().st_size
