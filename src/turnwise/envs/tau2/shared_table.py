"""A database table that many episodes share. A record is copied when an episode first accesses it by key."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from copy import deepcopy
from typing import Any


class Table:
    """The records that a database table has at the start of every episode. They are never changed."""

    __slots__ = ("_texts", "records")

    def __init__(self, records: dict[str, Any]) -> None:
        self.records = records
        self._texts: dict[str, str] = {}

    def text(self, key: str) -> str | None:
        """Returns the record with this key as text, or None if there is no such record."""
        if key in self.records and key not in self._texts:
            self._texts[key] = text_of(self.records[key])
        return self._texts.get(key)


class Records(MutableMapping[str, Any]):
    """One episode's view of a table.

    A record that is accessed by key is the episode's own copy and may be changed. ``values`` and ``items`` give records
    for reading only. A deep copy of the view copies no records: the view and its copy each copy a record when it is
    next accessed by key.
    """

    __slots__ = ("_frozen", "_own", "_table")

    def __init__(self, table: Table, frozen: dict[str, Any] | None = None) -> None:
        self._table, self._frozen = table, frozen or {}
        self._own: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._own:
            self._own[key] = deepcopy(self.peek(key))
        return self._own[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._own[key] = value

    def __delitem__(self, key: str) -> None:
        raise TypeError("a record of the benchmark cannot be deleted")

    def __contains__(self, key: object) -> bool:
        return key in self._table.records or key in self._frozen or key in self._own

    def __iter__(self) -> Iterator[str]:
        yield from self._table.records
        yield from (key for key in {**self._frozen, **self._own} if key not in self._table.records)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def peek(self, key: str) -> Any:
        """Returns a record for reading only.

        Raises:
            KeyError: there is no record with this key.
        """
        return self.look()[key]

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:
        return _Items(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Records:
        if self._own:
            self._frozen, self._own = {**self._frozen, **self._own}, {}
        return Records(self._table, self._frozen)

    def look(self) -> Mapping[str, Any]:
        """Returns all records for reading only, without copies."""
        return ChainMap(self._own, self._frozen, self._table.records)

    def changes(self) -> dict[str, str]:
        """Returns the records that this episode has changed or added: key -> the record as text."""
        found = {key: text_of(self.peek(key)) for key in {**self._frozen, **self._own}}
        return {key: text for key, text in found.items() if text != self._table.text(key)}


class _Values(ValuesView[Any]):
    _mapping: Records

    def __iter__(self) -> Iterator[Any]:
        return map(self._mapping.peek, self._mapping)


class _Items(ItemsView[str, Any]):
    _mapping: Records

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((key, self._mapping.peek(key)) for key in self._mapping)


def text_of(record: Any) -> str:
    """Returns a record, which is a pydantic model, as the text that the benchmark hashes.

    The text is JSON with sorted keys, in which 5 differs from 5.0.
    """
    return json.dumps(record.model_dump(warnings=False), sort_keys=True, default=str)
