"""API-Bank's metric: the share of API calls that are correct, by level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnwise.data.toolcalls.formats import Format
from turnwise.data.toolcalls.match import equivalent
from turnwise.envs.tools import read_calls
from turnwise.types import ToolCall


def call_accuracy(
    replies: Iterable[tuple[str, Sequence[ToolCall], str]], form: Format = "bfcl_python"
) -> dict[str, float]:
    """Accuracy of calls by level, and ``total`` over all calls (arXiv:2304.08244, section 4.2).

    A call is correct where the reply to the demonstrated history makes it: the same API with the same input. The benchmark's own
    program compares, besides, what its APIs answer; that is decided by API and input.

    Args:
        replies: level, the calls that were due, and the reply.
        form: how calls are written in the replies.

    Raises:
        ValueError: there is no reply, or nothing was due at one.
    """
    right: dict[str, list[bool]] = {}
    for level, due, reply in replies:
        if not due:
            raise ValueError(f"{level}: no call was due; the accuracy is one of calls")
        made = list(read_calls(reply, form) or ())
        for call in due:
            place = next((i for i, one in enumerate(made) if equivalent([one], [call])), None)
            right.setdefault(level, []).append(place is not None)
            if place is not None:
                del made[place]
    if not right:
        raise ValueError("no reply to judge")
    everything = [one for some in right.values() for one in some]
    return {
        **{level: sum(some) / len(some) for level, some in sorted(right.items())},
        "total": sum(everything) / len(everything),
    }
