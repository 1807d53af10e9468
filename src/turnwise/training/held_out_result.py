"""Computes the entries of ``result.json`` and the metrics about the held-out dialogues of a user's file. Rates are
percentages (0 to 100).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from turnwise.evaluation.reply_statistics import Counted, Reply, groups, likelihood, paired_change, pooled, rate
from turnwise.evaluation.suites import Evaluation

RULES = {"functional": False, "strict": True}


def held_out_result(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``held_out`` of ``result.json``, or an empty map if no dialogues were evaluated.

    The entry contains the numbers of dialogues and replies. For all replies, for each tool and for each turn, the entry
    contains the demonstrated replies' negative log-likelihood per token in nats (``nll``), and the percentages of the
    policy's replies that are ``functional`` and ``strict``. Each value is given before and after training, with the
    change and the confidence interval of the change.
    """
    if not base.replies:
        return {}
    both = zip(groups(base.replies), groups(after.replies), strict=True)
    parts = [
        {
            name: {"replies": len(before[name]), **_figures(before[name], since[name])}
            for name in before
            if name in since
        }
        for before, since in both
    ]
    return {
        "dialogues": len({reply.dialogue for reply in base.replies}),
        "replies": len(base.replies),
        **_figures(base.replies, after.replies),
        "by_tool": parts[0],
        "by_turn": parts[1],
    }


def held_out_headline(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``in_domain`` of ``result.json`` for a run on dialogues: the percentages of the replies sampled
    as in training (``sampled``) and of the greedy replies (``greedy``) that the verifier accepts. The headline is the
    percentage of the sampled replies, or without sampled replies, of the greedy replies.
    """
    modes = {
        mode: {**_compared(rate(base.replies, mode), rate(after.replies, mode), 100), "tasks": len(base.replies)}
        for mode in ("sampled", "greedy")
        if rate(base.replies, mode)
    }
    headline = next(iter(modes))
    return {**modes[headline], "decoding": headline, **modes}


def held_out_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Returns the metrics ``eval/held_out/...`` of one evaluation on held-out dialogues."""
    replies = evaluation.replies
    if not replies:
        return {}
    metrics = {"eval/held_out/nll": round(pooled(likelihood(replies)), 4)}
    for name, rule in RULES.items():
        for mode, suffix in (("sampled", ""), ("greedy", "_greedy")):
            if counted := rate(replies, mode, rule):
                metrics[f"eval/held_out/{name}{suffix}"] = round(100 * pooled(counted), 2)
    by_tool, by_turn = groups(replies)
    for kind, parts in (("tool", by_tool), ("turn", by_turn)):
        keys = metric_keys(parts)
        for name, part in parts.items():
            counted = rate(part, "sampled") or rate(part, "greedy")
            metrics[f"eval/held_out/{kind}/{keys[name]}"] = round(100 * pooled(counted), 2)
    return metrics


def metric_keys(names: Iterable[str]) -> dict[str, str]:
    """Returns name -> part of a metric key. Sequences of characters other than letters, digits, ``_`` and ``-`` are
    replaced by ``_``. If several names would get the same key, numbers are appended to all of these keys except one.
    """
    plain = {name: re.sub(r"[^\w-]+", "_", name) for name in names}
    keys: dict[str, str] = {}
    for name in sorted(plain, key=lambda name: plain[name] != name):
        number, key = 1, plain[name]
        while key in keys.values():
            number += 1
            key = f"{plain[name]}_{number}"
        keys[name] = key
    return keys


def _figures(before: Sequence[Reply], since: Sequence[Reply]) -> dict[str, Any]:
    mode = "sampled" if rate(before, "sampled") else "greedy"
    return {
        "nll": _compared(likelihood(before), likelihood(since), 1),
        **{name: _compared(rate(before, mode, rule), rate(since, mode, rule), 100) for name, rule in RULES.items()},
    }


def _compared(before: Counted, since: Counted, unit: float) -> dict[str, Any]:
    """Returns a ratio before and after training, and the change with its confidence interval. ``unit`` is 100 for
    fractions, which become percentages, and 1 for values in nats.
    """
    digits = 2 if unit == 100 else 4
    change = paired_change(before, since, shares=unit == 100)
    sides = [round(unit * pooled(side), digits) for side in (before, since)]
    bounds = None if change.low is None or change.high is None else [change.low, change.high]
    return {
        "base": sides[0],
        "after": sides[1],
        "delta": round(sides[1] - sides[0], digits),
        "delta_ci95": bounds and [round(unit * bound, digits) for bound in bounds],
    }
