"""A database table that many episodes share. A record is copied when an episode first accesses it by key."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import ItemsView, Mapping, MutableMapping, ValuesView
from copy import deepcopy
from typing import Any, NoReturn


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


class Records(ChainMap[str, Any]):
    """One episode's view of a table.

    A record that is accessed by key is the episode's own copy and may be changed. ``values`` and ``items`` give records
    for reading only. A deep copy of the view copies no records: the view and its copy each copy a record when it is
    next accessed by key.
    """

    def __init__(self, table: Table, frozen: MutableMapping[str, Any] | None = None) -> None:
        super().__init__({}, frozen or {}, table.records)  # own copies, changed records before the last copy, the rest
        self._table = table

    def __getitem__(self, key: str) -> Any:
        own = self.maps[0]
        if key not in own:
            own[key] = deepcopy(self.peek(key))
        return own[key]

    def _refuse(self, *given: Any) -> NoReturn:
        raise TypeError("a record of the benchmark cannot be deleted")

    __delitem__ = pop = popitem = clear = _refuse  # type: ignore[assignment]

    def peek(self, key: str) -> Any:
        """Returns a record for reading only.

        Raises:
            KeyError: there is no record with this key.
        """
        return self.look()[key]

    def values(self) -> ValuesView[Any]:
        return self.look().values()

    def items(self) -> ItemsView[str, Any]:
        return self.look().items()

    def __deepcopy__(self, memo: dict[int, Any]) -> Records:
        if self.maps[0]:
            self.maps[:2] = {}, {**self.maps[1], **self.maps[0]}
        return Records(self._table, self.maps[1])

    def look(self) -> Mapping[str, Any]:
        """Returns all records for reading only, without copies."""
        return ChainMap(*self.maps)

    def changes(self) -> dict[str, str]:
        """Returns the records that this episode has changed or added: key -> the record as text."""
        found = {key: text_of(self.peek(key)) for key in {**self.maps[1], **self.maps[0]}}
        return {key: text for key, text in found.items() if text != self._table.text(key)}


def text_of(record: Any) -> str:
    """Returns a record, which is a pydantic model, as the text that the benchmark hashes.

    The text is JSON with sorted keys, in which 5 differs from 5.0.
    """
    return json.dumps(record.model_dump(warnings=False), sort_keys=True, default=str)
