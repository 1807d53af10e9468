"""Summarises a policy's results on held-out dialogues of a user's file: the likelihood that the policy gives to the
demonstrated (expert) replies, and the fraction of the policy's own replies that were accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnwise.evaluation.stats import Estimate

RESAMPLES = 10_000
TEXT = "no_call"  # name of the group of replies without a tool call


@dataclass(frozen=True, slots=True)
class Reply:
    """One demonstrated reply of a held-out dialogue, and the policy's results at the same state.

    ``sampled`` holds one pair of verdicts (functional, strict) for each sampled reply of the policy, and ``greedy``
    holds one pair for its greedy reply. The functional verdict says whether the run's rule accepts the reply. The
    strict verdict says whether the reply has the same calls in the same order as the demonstrated reply, or the same
    text.
    """

    reply: str  # id of the state in which the reply is given
    dialogue: str
    turn: int
    tools: tuple[str, ...]  # names of the tools that the demonstrated reply calls, without repetition
    nats: float  # sum of the negative log-likelihood over the tokens of the demonstrated reply
    tokens: int
    sampled: tuple[tuple[float, float], ...]
    greedy: tuple[tuple[float, float], ...]
    expert: str = ""
    said: str = ""  # text of the policy's greedy reply


def reply_of(row: Mapping[str, Any]) -> Reply:
    """Returns the :class:`Reply` that a JSON record describes. This is the inverse of ``dataclasses.asdict``."""
    verdicts = {name: tuple((float(f), float(s)) for f, s in row[name]) for name in ("sampled", "greedy")}
    return Reply(**{**row, "tools": tuple(row["tools"]), **verdicts})


Counted = Mapping[str, tuple[float, float]]
"""A mapping from the id of each dialogue to two numbers: what the dialogue adds to the numerator and to the denominator
of a ratio over all dialogues.
"""


def likelihood(replies: Iterable[Reply]) -> dict[str, tuple[float, float]]:
    """Returns, for each dialogue, the negative log-likelihood of its demonstrated replies in nats and the number of
    tokens of these replies.
    """
    found: dict[str, tuple[float, float]] = {}
    for reply in replies:
        nats, tokens = found.get(reply.dialogue, (0.0, 0.0))
        found[reply.dialogue] = nats + reply.nats, tokens + reply.tokens
    return found


def rate(replies: Iterable[Reply], mode: str, strict: bool = False) -> dict[str, tuple[float, float]]:
    """Returns, for each dialogue, how many replies of the policy were accepted and how many replies there are.

    Several attempts at one state count as one reply, and the fraction of them that was accepted is added to the number
    of accepted replies. ``mode`` is ``sampled`` or ``greedy``. The strict verdicts are counted if ``strict``
    is set, else the functional ones.
    """
    found: dict[str, tuple[float, float]] = {}
    for reply in replies:
        verdicts = getattr(reply, mode)
        if verdicts:
            good, count = found.get(reply.dialogue, (0.0, 0.0))
            # several attempts at one state count as one reply
            found[reply.dialogue] = good + float(np.mean([verdict[strict] for verdict in verdicts])), count + 1
    return found


def pooled(counted: Counted) -> float:
    """Returns the ratio over all dialogues: the sum of their numerators divided by the sum of their denominators."""
    return sum(part for part, _ in counted.values()) / sum(whole for _, whole in counted.values())


def paired_change(before: Counted, after: Counted, *, shares: bool) -> Estimate:
    """Returns how much the pooled ratio (:func:`pooled`) changes from ``before`` to ``after``, with a 95 % confidence
    interval. The interval comes from a paired percentile bootstrap that resamples whole dialogues.

    Args:
        shares: whether the ratios are fractions in [0, 1]. If they are and all dialogues changed by the same amount,
            the bootstrap interval would have width 0. Then two dialogues of average size are added, one that changed
            from 0 to 1 and one that changed from 1 to 0, as in :func:`turnwise.evaluation.stats.paired_difference`.

    Raises:
        ValueError: ``before`` and ``after`` have different dialogues, or none.
    """
    if not before or before.keys() != after.keys():
        raise ValueError(f"both evaluations need the same dialogues, got {len(before)} and {len(after)}")
    table = np.array([[*before[name], *after[name]] for name in before])
    change = pooled(after) - pooled(before)
    if len(table) < 2:
        return Estimate(change, None, None, len(table))
    moved = table[:, 2] / table[:, 3] - table[:, 0] / table[:, 1]
    if shares and np.ptp(moved) == 0:
        size = table[:, 1].mean()
        table = np.vstack([table, [0, size, size, size], [size, size, 0, size]])
    draws = np.random.default_rng(0).multinomial(len(table), np.full(len(table), 1 / len(table)), size=RESAMPLES)
    sums = draws @ table
    resampled = sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(change, float(low), float(high), len(before))


def groups(replies: Sequence[Reply]) -> tuple[dict[str, list[Reply]], dict[str, list[Reply]]]:
    """Returns the replies grouped by the tools that the demonstrated reply calls, and grouped by their turn in the
    dialogue (counted from 1).

    If the demonstrated reply calls two tools, the reply is in the groups of both tools.
    """
    by_tool: dict[str, list[Reply]] = {}
    by_turn: dict[str, list[Reply]] = {}
    for reply in replies:
        for tool in reply.tools or (TEXT,):
            by_tool.setdefault(tool, []).append(reply)
        by_turn.setdefault(str(reply.turn + 1), []).append(reply)
    return (
        dict(sorted(by_tool.items(), key=lambda item: (item[0] == TEXT, item[0]))),
        dict(sorted(by_turn.items(), key=lambda item: int(item[0]))),
    )
