"""Returns the results of a run as rows of tables."""

from __future__ import annotations

from turnwise.runs.result_file import Comparison, HeldOut, InDomain, Replies, Result


def in_domain_rows(result: InDomain) -> list[tuple[str, str, Comparison]]:
    """Returns rows (decoding mode, split, comparison). The decoding mode of the report's main number comes first. Each
    mode has a row for all held-out tasks, for each split and for each subset. The last rows hold pass@k.
    """
    modes = {mode: part for mode in ("greedy", "sampled") if (part := getattr(result, mode)) is not None}
    same = next((m for m, part in modes.items() if (part.base, part.after) == (result.base, result.after)), None)
    modes = {same or "headline": result, **{mode: part for mode, part in modes.items() if mode != same}}
    rows: list[tuple[str, str, Comparison]] = []
    for mode, part in modes.items():
        rows += [(mode, "all held-out", part), *((mode, split, one) for split, one in part.by_split.items())]
        rows += [(mode, f"subset {name}", one) for name, one in part.by_subset.items()]
        rows += [(mode, "mean of subsets", part.subset_mean)] if part.subset_mean else []
    for k, value in sorted(result.pass_at_k.items(), key=lambda item: (len(item[0]), item[0])):
        rows.append((f"pass@{k}", "all held-out", value if isinstance(value, Comparison) else Comparison(after=value)))
    return rows


def domain_rows(result: Result) -> list[tuple[str, str, Comparison]]:
    """Returns the rows on tasks of an environment, even if the report's main number is about held-out dialogues."""
    if result.held_out is None or result.in_domain.by_split:
        return in_domain_rows(result.in_domain)
    return in_domain_rows(result.environment) if result.environment else []


def reply_rows(held_out: HeldOut) -> list[tuple[str, Replies]]:
    """Returns rows (label, held-out replies): all replies, the replies in which the demonstration calls a given tool
    (or no tool), and the replies at a given turn of the dialogues.
    """
    tools = [
        ("replies in text" if tool == "no_call" else f"calls of {tool}", part)
        for tool, part in held_out.by_tool.items()
    ]
    turns = [(f"reply {turn} of a dialogue", part) for turn, part in held_out.by_turn.items()]
    return [("all replies", held_out), *tools, *turns]
