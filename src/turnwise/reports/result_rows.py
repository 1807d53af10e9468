"""Returns the results of a run as rows of tables: held-out success by decoding mode, split and subset, and the held-out
replies by tool and turn.
"""

from __future__ import annotations

from turnwise.runs.result_file import Comparison, HeldOut, InDomain, Replies, Result


def in_domain_rows(result: InDomain) -> list[tuple[str, str, Comparison]]:
    """Returns rows (decoding mode, split, comparison). The decoding mode of the report's main number comes first,
    then the other modes. Each mode has a row for all held-out tasks and a row for each split and subset. The last rows
    hold pass@k for each k.
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
    """Returns the rows (:func:`in_domain_rows`) on tasks of an environment. If the report's headline is about held-out
    dialogues, the rows are about the tasks that were evaluated in addition to the dialogues.
    """
    if result.held_out is None or result.in_domain.by_split:
        return in_domain_rows(result.in_domain)
    return in_domain_rows(result.environment) if result.environment else []


def reply_rows(held_out: HeldOut) -> list[tuple[str, Replies]]:
    """Returns rows (label, held-out replies). The first row is about all replies. Then there is a row for each
    tool, about the replies in which the demonstration calls this tool (or no tool), and a row for each turn of the
    dialogues, about the replies at this turn.
    """
    tools = [
        ("replies in text" if tool == "no_call" else f"calls of {tool}", part)
        for tool, part in held_out.by_tool.items()
    ]
    turns = [(f"reply {turn} of a dialogue", part) for turn, part in held_out.by_turn.items()]
    return [("all replies", held_out), *tools, *turns]
