"""API-Bank's metric: the share of correct API calls at each level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnwise.data.toolcalls.formats import Format
from turnwise.data.toolcalls.match import equivalent
from turnwise.envs.tools import read_calls
from turnwise.types import ToolCall


def call_accuracy(
    replies: Iterable[tuple[str, Sequence[ToolCall], str]], form: Format = "bfcl_python"
) -> dict[str, float]:
    """Returns the accuracy of calls at each level, and ``total`` over all calls (arXiv:2304.08244, section 4.2).

    A call is correct if the reply makes it: the same API with the same input. The reply answers the demonstrated
    history. The benchmark's own program also compares the APIs' answers, but API and input determine those.

    Args:
        replies: for each reply its level, the expected calls, and the reply's text.
        form: the format of calls in the replies.

    Raises:
        ValueError: there are no replies, or no call is expected for one of them.
    """
    right: dict[str, list[bool]] = {}
    for level, due, reply in replies:
        if not due:
            raise ValueError(f"{level}: no call is expected for a reply; leave it out, because the metric counts calls")
        made = list(read_calls(reply, form) or ())
        for call in due:
            place = next((i for i, one in enumerate(made) if equivalent([one], [call])), None)
            right.setdefault(level, []).append(place is not None)
            if place is not None:
                del made[place]
    if not right:
        raise ValueError("there are no replies to judge")
    everything = [one for some in right.values() for one in some]
    return {
        **{level: sum(some) / len(some) for level, some in sorted(right.items())},
        "total": sum(everything) / len(everything),
    }
