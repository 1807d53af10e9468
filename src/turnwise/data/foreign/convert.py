"""Converts a trajectory from another program's format to a Trajectory: its turns, tools and tool calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.data.foreign.conversations import conversation_of
from turnwise.data.foreign.tool_calls import structured
from turnwise.data.foreign.tool_definitions import openai_tool, tools_in
from turnwise.data.parse_trajectory import checked_record, listed_tools, parse_trajectory
from turnwise.data.pivot_rows.read import is_row, name_of
from turnwise.data.read_records import OnBytes, UnusableError, read_records
from turnwise.data.toolcalls.detect_format import written
from turnwise.data.trajectories import BadTrajectory, used_twice
from turnwise.types import Trajectory

Calls = Literal["auto", "none", "hermes", "qwen_xml", "llama_json", "bfcl_python"]
"""The format of the tool calls that are written in the text of assistant turns. ``auto`` detects the format. ``none``
leaves the text unchanged.
"""

KEYS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")  # keys of imported messages


def converted(record: Any, source: str, calls: Calls = "auto", keep_system: bool = False) -> Trajectory:
    """Returns a record of a trajectory file as a Trajectory.

    A record with a ``task`` is already in Turnwise's format. The environment reads the text of its replies, so
    ``calls="auto"`` leaves this text unchanged.

    Args:
        record: a record with OpenAI's, ShareGPT's or xLAM's keys, or a pivot row. An UnusableError, in place of a
            record that could not be read, is raised.
        source: the place of the record as ``file:line``. A record without an id gets an id made from this place.
        calls: the format of tool calls in the text of replies.
        keep_system: whether to keep the system message from which the tools were read. By default it is dropped,
            because the chat template shows the tools itself, in the format that the policy has learned.

    Raises:
        UnusableError: the record has a mistake; the error describes the first mistake.
    """
    record = checked_record(record)
    if is_row(record) or record.get("pivot") is not None:
        return parse_trajectory(record, source)
    messages = conversation_of(record)
    tools = listed_tools(record.get("tools") or record.get("functions"))
    ours = record.get("task") is not None
    if calls == "auto" and ours:
        calls = "none"
    if not ours and not tools:
        place, tools = next(
            ((i, found) for i, m in enumerate(messages) if m["role"] == "system" and (found := tools_in(m["content"]))),
            (-1, []),
        )
        if tools and not keep_system:
            del messages[place]
    tools = tools if ours else [openai_tool(tool) for tool in tools]
    form = written(messages, tools) if calls == "auto" else calls
    if form != "none":
        messages = list(structured(messages, tools, form))
    identity = record.get("id", record.get("conversation_id"))
    return parse_trajectory(
        {
            "id": name_of(source) if identity is None else str(identity),
            "messages": messages,
            "tools": tools,
            "task": record.get("task"),
            "success": record.get("success"),
        },
        source,
    )


@dataclass(slots=True)
class Importer:
    """Reads trajectories from files one at a time and converts them.

    Attributes:
        calls, keep_system: the arguments of :func:`converted` with the same names.
        read: number of records that were read so far.
        problems: the problems of unusable records, in the order in which the records were read.
    """

    calls: Calls = "auto"
    keep_system: bool = False
    read: int = 0
    problems: list[BadTrajectory] = field(default_factory=list)
    _seen: dict[str, str] = field(default_factory=dict)  # id of a trajectory -> file and line where it was read

    def __post_init__(self) -> None:
        if self.calls not in get_args(Calls):
            raise ValueError(f"calls must be one of {', '.join(get_args(Calls))}, got {self.calls!r}")

    def trajectories(self, paths: Sequence[Path], on_bytes: OnBytes | None = None) -> Iterator[Trajectory]:
        """Yields the usable trajectories of the files in order.

        Raises:
            InputError: a file cannot be read.
        """
        for path in paths:
            for source, record in read_records(path, key="the command", on_bytes=on_bytes):
                self.read += 1
                try:
                    trajectory = converted(record, source, self.calls, self.keep_system)
                    if trajectory.id in self._seen:
                        raise used_twice(trajectory.id, self._seen[trajectory.id])
                except UnusableError as error:
                    self.problems.append(BadTrajectory(source, error.what, error.remedy, error.reason))
                    continue
                self._seen[trajectory.id] = source
                yield trajectory
