"""API-Bank's metric: at each level, the fraction of the expected API calls that the policy makes correctly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnwise.data.match_calls import equivalent
from turnwise.data.toolcalls import Format
from turnwise.envs.tool_messages import read_calls
from turnwise.types import ToolCall


def call_accuracy(
    replies: Iterable[tuple[str, Sequence[ToolCall], str]], form: Format = "bfcl_python"
) -> dict[str, float]:
    """Returns level -> accuracy of the policy's calls, and the accuracy over all levels as ``total``.

    Source: arXiv:2304.08244, section 4.2. Each reply continues a demonstrated history. An expected call counts as
    correct if the reply contains an equivalent call. The benchmark's own program also compares the answers of the APIs.
    This function does not, because an API and its input determine the answer.

    Args:
        replies: one triple (level, expected calls, text of the policy's reply) for each reply.
        form: the format of calls in the replies.

    Raises:
        ValueError: there are no replies, or a reply has no expected call.
    """
    right: dict[str, list[bool]] = {}
    for level, due, reply in replies:
        if not due:
            raise ValueError(
                f"{level}: no call is expected for a reply; leave the reply out, because the metric counts calls"
            )
        made = list(read_calls(reply, form) or ())
        for call in due:
            place = next((i for i, one in enumerate(made) if equivalent([one], [call])), None)
            right.setdefault(level, []).append(place is not None)
            if place is not None:
                del made[place]
    if not right:
        raise ValueError("there are no replies to judge; give at least one reply")
    everything = [one for some in right.values() for one in some]
    return {
        **{level: sum(some) / len(some) for level, some in sorted(right.items())},
        "total": sum(everything) / len(everything),
    }
