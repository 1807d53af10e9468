"""Tables that episodes share: each sees its own changes and nobody else's, whatever is read, written and forked."""

from __future__ import annotations

import copy
import json

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turnwise_worlds.tau2.domains import Records, Table


class Row(BaseModel):
    """A record with something inside that can be changed in place."""

    amount: float = 0
    names: list[str] = []


def plain(records):
    return {key: row.model_dump() for key, row in records.items()}


def test_changes_are_compared_as_the_benchmark_hashes_them():
    records = Records(Table({"a": Row(amount=5), "b": Row(names=["x"])}))
    records["a"].amount = 5
    assert records["b"] and records.changes() == {"a": '{"amount": 5, "names": []}'}  # 5.0 before: other text
    records["a"].amount = 5.0
    records["c"] = Row()
    assert {key: json.loads(text)["amount"] for key, text in records.changes().items()} == {"c": 0}
    assert list(records) == ["a", "b", "c"] and len(records) == 3 and "c" in records and "d" not in records


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "change", "read", "fork"]),
        st.integers(0, 3),
        st.sampled_from("abcd"),
        st.integers(0, 9),
    ),
    max_size=25,
)


@given(STEPS)
def test_forks_behave_as_deep_copies_of_plain_dictionaries(steps):
    rows = {"a": Row(amount=1), "b": Row(amount=2, names=["y"])}
    table = Table(copy.deepcopy(rows))
    shared, honest = [Records(table)], [copy.deepcopy(rows)]
    for kind, place, key, number in steps:
        place %= len(shared)
        if kind == "fork":
            shared.append(copy.deepcopy(shared[place]))
            honest.append(copy.deepcopy(honest[place]))
        elif kind == "write":
            shared[place][key], honest[place][key] = Row(amount=number), Row(amount=number)
        elif key in honest[place]:
            for each in (shared[place][key], honest[place][key]):
                each.names += [str(number)] if kind == "change" else []
        assert [plain(records) for records in shared] == [plain(rows) for rows in honest]
    assert plain(table.records) == plain(rows)
