"""Lists the numbers printed in the paper Selective Rollout (arXiv:2605.05802), and compares them with a gate report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal

Verdict = Literal["agrees", "differs", "not in the data"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A printed number, and our number at its path, rounded to the printed digits (halves up)."""

    key: str
    printed: str
    ours: str | None
    verdict: Verdict


def compare(result: Mapping[str, Any]) -> list[Cell]:
    """Compares every printed number with the number at its path in a gate report."""
    return [_cell(key, printed, _look_up(result, key)) for key, printed in printed_figures()]


def printed_figures() -> Iterator[tuple[str, str]]:
    """Yields (path in the JSON of ``scripts/gate_report.py``, number as it is printed)."""
    yield from _rows("t1", "cut tp fp precision recall safe raw", _T1)
    for signal, row in _T7.items():
        for k, printed in zip(("5", "10", "15", "20"), row.split(), strict=True):
            yield f"t7/{k}/{signal}/rho", printed
    yield from {"t7/15/prefix_edit_distance_mean/p": "1.4e-05", "t7/15/prefix_edit_distance_mean/auroc": "0.77"}.items()
    yield from _rows("t8", "n n_zv auroc best/signal best/k best/auroc", _T8)
    yield from {"t8/median/auroc": "0.76", "t8/median/best_auroc": "0.86"}.items()
    yield from _rows("t10", "n median_d median_tau", _T10)
    yield from _rows("t12", "cut tp fp precision saved_pct l2_pct", _T12)
    yield from _TIERS.items()


_T1 = {
    "0.05": "9 9 0 1.00 0.23 6.0 6.0",
    "0.08": "14 13 1 0.93 0.33 8.7 9.3",
    "0.10": "20 16 4 0.80 0.41 10.7 13.3",
    "0.12": "21 17 4 0.81 0.44 11.3 14.0",
    "0.14": "24 18 6 0.75 0.46 12.0 16.0",
    "0.18": "25 19 6 0.76 0.49 12.7 16.7",
}
_T7 = {
    "prefix_edit_distance_mean": "0.246 0.374 0.419 0.418",
    "action_bigram_jaccard_mean": "0.293 0.407 0.406 0.389",
    "unique_prefix_ratio": "0.320 0.398 0.307 0.208",
    "unique_action_ratio": "0.314 0.379 0.272 0.167",
    "action_entropy": "0.292 0.369 0.255 0.161",
    "obs_unique_ratio": "0.251 0.397 0.307 0.093",
    "termination_fraction": "-0.188 -0.059 0.110 0.235",
}
_T8 = {
    "pick_and_place_simple": "24 13 0.62 unique_action_ratio 15 0.86",
    "pick_two_obj_and_place": "20 13 0.91 termination_fraction 20 0.86",
    "pick_cool_then_place_in_recep": "19 5 0.48 termination_fraction 20 0.82",
    "pick_clean_then_place_in_recep": "18 5 0.56 termination_fraction 15 0.71",
    "pick_heat_then_place_in_recep": "11 1 1.00 action_entropy 10 1.00",
    "look_at_obj_in_light": "8 2 1.00 unique_prefix_ratio 15 1.00",
}
_T10 = {"all_succeed": "14 0.19 1.00", "mixed": "61 0.47 0.13", "all_fail": "25 0.26 0.00"}
_T12 = {
    "no_gate": "0 0 0 - 0.0 100.0",
    "random": "23 9 14 0.39 13.3 87.6",
    "oracle": "39 39 0 1.00 23.1 100.0",
    "dapo": "0 0 0 - 0.0 100.0",
    "divergence": "21 17 4 0.81 11.3 96.7",
    "termination": "6 6 0 1.00 0.0 100.0",
    "either": "23 19 4 0.83 11.3 96.7",
    "divergence+dapo": "21 17 4 0.81 11.3 96.7",
}
_TIERS = {
    "tier1/baseline": "2678.6",
    "tier1/gated": "2323.9",
    "tier1/saved_pct": "13.25",
    "tier1/ci95/0": "7.55",
    "tier1/ci95/1": "19.12",
    "tier1/cut": "20",
    "tier1/tp": "19",
    "tier1/precision": "0.95",
    "tier3/baseline_s": "17393",
    "tier3/baseline_s_std": "187",
    "tier3/gated_s": "15527",
    "tier3/gated_s_std": "534",
    "tier3/saved_pct": "10.7",
    "tier3/saved_pct_std": "2.4",
    "tier3/cut": "106",
    "tier3/cut_std": "18",
    "tier3/grad_norm/baseline": "0.125",
    "tier3/grad_norm/gated": "0.145",
    "tier3/grad_norm_std/baseline": "0.001",
    "tier3/grad_norm_std/gated": "0.008",
    "tier3/grad_amplification": "1.16",
    "tier3/grad_amplification_std": "0.07",
    "tier3/zero_advantage_pct/baseline": "40.6",
    "tier3/zero_advantage_pct/gated": "25.1",
    "tier3/predicted_amplification": "1.20",
    "tier3/held_out/baseline_before": "39.5",
    "tier3/held_out/gated_before": "39.5",
    "tier3/held_out/baseline_after": "41.5",
    "tier3/held_out/gated_after": "44.0",
    "tier3/held_out/change": "2.5",
}


def _rows(table: str, columns: str, rows: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, row in rows.items():
        for column, printed in zip(columns.split(), row.split(), strict=True):
            if printed != "-":
                yield f"{table}/{name}/{column}", printed


def _look_up(node: Any, key: str) -> Any:
    for part in key.split("/"):
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, Sequence) and not isinstance(node, str) and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


def _cell(key: str, printed: str, value: Any) -> Cell:
    if value is None:
        return Cell(key, printed, None, "not in the data")
    ours = value if isinstance(value, str) else _like(printed, float(value))
    return Cell(key, printed, ours, "agrees" if ours == printed else "differs")


def _like(printed: str, value: float) -> str:
    """Returns ``value`` as text with as many decimals as ``printed``."""
    if "e" in printed:
        return f"{value:.{len(printed.partition('e')[0].partition('.')[2])}e}"
    return half_up(value, len(printed.partition(".")[2]))


def half_up(value: float, digits: int) -> str:
    """Rounds ``value`` to ``digits`` decimals, as text. Halves are rounded up, even an inexact half (0.12499999999)."""
    rounded = Decimal(repr(round(value, 10))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}"
