"""The offline tables, their counts and their intervals, against counts by hand and scipy's own statistics."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from scripts import gate_report as gate_script

from turnwise.errors import InputError
from turnwise.evaluation.stats import wilson
from turnwise.methods.selective import DISTANCE, SIGNALS, TERMINATION
from turnwise_study.gates.groups import Buffer, read_recorded_groups, saving_in_paired_groups
from turnwise_study.gates.report import Settings, gate_report
from turnwise_study.gates.statistics import cut_counts, difference, intervals, median_row, rank_rows, rank_statistics
from turnwise_study.gates.tables import (
    arms_table,
    looks_table,
    peak_row,
    regime_row,
    signals_table,
    thresholds_table,
    types_table,
)

# -- tables ------------------------------------------------------------------------------------------------------------

Make = Callable[..., Buffer]
ROWS = [
    ("all_fail", 0.00, 20),
    ("all_succeed", 0.05, 0),  # over by step 5
    ("mixed", 0.10, 20),
    ("all_fail", 0.30, 20),
    ("mixed", 0.50, 10),
]


def test_a_threshold_by_hand(make_buffer: Make) -> None:
    row = thresholds_table(make_buffer(ROWS), 5, [0.12, 0.05], 50, 0)["0.12"]
    assert (row["cut"], row["tp"], row["fp"]) == (3, 2, 1)
    assert (row["precision"], row["recall"]) == pytest.approx((2 / 3, 2 / 3))
    # (T - K) / T = 1/2 of five groups
    assert (row["safe"], row["raw"]) == pytest.approx((20.0, 30.0))
    assert row["raw_ci95"][0] <= 30 <= row["raw_ci95"][1]
    assert thresholds_table(make_buffer(ROWS), 5, [0.05], 50, 0)["0.05"]["cut"] == 1  # below, not at


def test_the_peak_is_the_greatest_rank_correlation_of_either_sign(make_buffer: Make) -> None:
    """Against scipy's own."""
    rows = [
        (label, *((i * 7 + 3 * k) % 11 / 11 - (label == "mixed") * 0.2 * k for k in range(3)), 4, 3, 2)
        for i, label in enumerate(["mixed", "all_fail", "mixed", "all_succeed", "mixed", "all_fail"] * 4)
    ]
    buffer = make_buffer(rows, steps=(5, 6, 7))
    rho = {k: stats.spearmanr(buffer.values(k, DISTANCE), buffer.variances).statistic for k in buffer.steps}
    best = max(rho, key=lambda k: abs(rho[k]))
    assert rho[best] < 0 and abs(rho[best]) > sorted(map(abs, rho.values()))[1] + 0.01
    peak = peak_row(buffer)
    assert peak["k"] == best and peak["rho"] == pytest.approx(-rho[best])
    one = peak_row(buffer, "unique_prefix_ratio")  # the buffer's other signals are d
    assert one == peak


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=4, max_size=30))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rank_statistics_against_scipy(pairs: list[tuple[int, int]]) -> None:
    values, variances = np.array(pairs, dtype=float).T
    rho, auroc = rank_statistics(values, variances)
    mixed = variances > 0
    if 0 < mixed.sum() < len(mixed):
        u = stats.mannwhitneyu(values[mixed], values[~mixed]).statistic
        assert auroc == pytest.approx(u / (mixed.sum() * (~mixed).sum()))
    else:
        assert auroc is None
    if np.ptp(values) > 0 and np.ptp(variances) > 0:
        assert rho == pytest.approx(stats.spearmanr(values, variances).statistic)
    else:
        assert rho is None


def test_types_take_the_strongest_correlation(make_buffer: Make) -> None:
    rows = [("all_fail", 0.1, 0.5, 20, 4, "a"), ("mixed", 0.2, 0.1, 20, 4, "a"), ("mixed", 0.3, 0.2, 20, 4, "a")]
    rows += [("mixed", 0.3, 0.2, 20, 4, "b")]
    table = types_table(make_buffer(rows, (5, 9)), 5, 20, 0)
    assert (table["a"]["n"], table["a"]["n_zv"], table["a"]["auroc"]) == (3, 1, 1.0)
    # all of kind a's signals rank alike at either step, once upwards, once downwards: |rho| ties, the first is taken
    assert (table["a"]["best"]["k"], table["a"]["best"]["auroc"]) == (5, 1.0)
    assert table["b"] == {"n": 1, "n_zv": 0, "auroc": None, "auroc_ci95": None, "best": None}
    assert table["median"] == {"auroc": 1.0, "best_auroc": 1.0}


def _spread(rows: int) -> list[tuple[object, ...]]:
    """Groups of two kinds, half of them mixed, whose distances and endings rise and fall without a pattern."""
    rng = np.random.default_rng(7)
    return [
        ("mixed" if i % 2 else "all_fail", float(rng.beta(2 + i % 2, 3)), int(rng.integers(0, 21)), "ab"[i // 2 % 2])
        for i in range(rows)
    ]


def test_the_interval_of_a_median_lies_between_order_statistics() -> None:
    """Of ten values, P(at most 1 below the median) = 11 / 1024 and P(at most 2) = 56 / 1024: the second and the ninth."""
    values = ([9.0, 0, 1, 2, 3, 4, 5, 6, 7, 8], [0.0] + [0.875] * 9, [0.0, 1, 2, 3, 4])
    found = [median_row(np.array(some), "m")["m_ci95"] for some in values]
    assert found == [[1, 8], [0.875, 0.875], None]


def test_a_signal_beside_the_termination_fraction(make_buffer: Make) -> None:
    buffer = make_buffer([row[:3] for row in _spread(60)])
    table = signals_table(buffer, 400, 0)["5"]
    d, tau = table[DISTANCE], table[TERMINATION]
    assert d["over_tau"] == pytest.approx(d["rho"] - tau["rho"])
    assert d["over_tau_ci95"][0] < d["over_tau"] < d["over_tau_ci95"][1]
    assert (tau["over_tau"], tau["over_tau_ci95"]) == (0, [0, 0])


def test_what_the_method_presupposes_by_hand(make_buffer: Make) -> None:
    found = regime_row(make_buffer(ROWS), 5, 0.12, 50, 0)
    names = ["zero_variance_pct", "below_pct", "live_pct", "oracle_pct"]
    # three of five end alike; of the three below 0.12 one is over; 40 of the 200 turns stand before groups that end alike
    assert [found[name] for name in names] == pytest.approx([60, 60, 40, 20])
    assert all(found[f"{name}_ci95"][0] <= found[name] <= found[f"{name}_ci95"][1] for name in names)


@given(st.integers(0, 10_000), st.integers(2, 40), st.booleans())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_bootstrap_of_all_signals_is_that_of_each_by_scipys_ranks(seed: int, n: int, holes: bool) -> None:
    rng = np.random.default_rng(seed)
    columns = {"d": rng.integers(0, 5, n) / 4, "other": rng.random(n)}
    if holes:
        columns["other"][rng.integers(n)] = np.nan  # a gate did not measure this group
    variances = np.where(rng.random(n) < 0.5, 0.0, rng.integers(0, 4, n) / 16)

    def statistic(values: np.ndarray, variances: np.ndarray) -> np.ndarray:
        ranks, of_variance = stats.rankdata(values, axis=-1), stats.rankdata(variances, axis=-1)
        a, b = (column - column.mean(-1, keepdims=True) for column in (ranks, of_variance))
        mixed = np.sqrt(variances) > 1e-6
        ones = mixed.sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            rho = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
            auroc = ((ranks * mixed).sum(-1) - ones * (ones + 1) / 2) / (ones * (n - ones))
        return np.stack([rho, auroc], -1)

    rows = rank_rows(columns, variances, 40, seed, ("over_d", "auroc", "d"))
    for name, values in columns.items():
        alone = intervals(statistic, [values, variances], 40, seed)
        assert [rows[name]["rho_ci95"], rows[name]["auroc_ci95"]] == alone  # to the last bit
        p = stats.spearmanr(values, variances).pvalue if rows[name]["rho"] is not None else math.nan
        assert rows[name]["p"] == (None if math.isnan(p) else p)
    assert rows["d"]["over_d_ci95"] in (None, [0.0, 0.0])


def flags(*counted: tuple[bool, int]) -> np.ndarray:
    return np.concatenate([np.full(count, value) for value, count in counted])


def test_precision_over_the_base_rate_by_hand() -> None:
    cut = flags((True, 21), (False, 79))
    uniform = flags((True, 17), (False, 4), (True, 22), (False, 57))  # the released groups
    row = cut_counts(cut, uniform)
    assert row["over_base"] == pytest.approx(17 / 21 - 0.39)
    assert row["over_base_ci95"][0] > 0.2
    assert (
        cut_counts(cut, np.ones(100, dtype=bool))["over_base"] == 0
    )  # where all groups end alike, precision is nothing


def test_newcombes_worked_example() -> None:
    """Newcombe (1998), Table II, example (a): 56 of 70 and 48 of 80, method 10: [0.0524, 0.3339]."""
    of = [wilson(56, 70), wilson(48, 80)]
    assert difference(*of) == pytest.approx((0.0524, 0.3339), abs=6e-5)


def ratio(saved: np.ndarray, total: np.ndarray) -> np.ndarray:
    return (saved.sum(-1) / total.sum(-1))[..., None]


def test_against_scipys_paired_bootstrap() -> None:
    rng = np.random.default_rng(3)
    total = rng.uniform(1, 5, 60)
    saved = total * rng.uniform(0, 0.5, 60)
    (ours,) = intervals(ratio, [saved, total], 8000, 1)
    theirs = stats.bootstrap(
        (saved, total),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=8000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert ours == pytest.approx([theirs.low, theirs.high], abs=3e-3)


def test_arms_by_hand(make_buffer: Make) -> None:
    arms = arms_table(make_buffer(ROWS), 5, 0.12, 0.9, 200, 0)
    assert [arms["divergence"][key] for key in ("cut", "tp", "fp")] == [3, 2, 1]
    # 40 of the 200 turns stood before the cut rollouts; one of two equal advantage vectors is lost
    assert arms["divergence"]["saved_pct"] == pytest.approx(100 * 40 / 200)
    assert arms["divergence"]["l2_pct"] == pytest.approx(100 * math.sqrt(1 / 2))
    assert [arms["termination"][key] for key in ("cut", "tp", "saved_pct", "l2_pct")] == [1, 1, 0, 100]
    assert arms["oracle"]["saved_pct"] == pytest.approx(100 * 40 / 200)
    assert arms["no_gate"]["saved_pct"] == arms["dapo"]["saved_pct"] == 0
    # three of five at random: on average 3/5 of the 70 turns; both mixed groups lost with chance 3/10, one with 6/10
    assert arms["random"]["saved_pct"] == pytest.approx(100 * 0.6 * 70 / 200)
    assert (arms["random"]["tp"], arms["random"]["fp"]) == pytest.approx((1.8, 1.2))
    assert arms["random"]["l2_pct"] == pytest.approx(100 * (0.1 + 0.6 * math.sqrt(0.5)))
    assert arms["divergence"]["below_oracle"] == pytest.approx(0)
    assert arms["divergence"]["over_random"] == pytest.approx(arms["divergence"]["l2_pct"] - arms["random"]["l2_pct"])


def test_differences_are_resampled_together(make_buffer: Make) -> None:
    """An oracle always saves at least as much as a gate that cuts only some of its groups, in every resample."""
    rows = [("all_fail", 0.05 if i % 2 else 0.5, 20) for i in range(20)] + [("mixed", 0.6, 20)] * 20
    arms = arms_table(make_buffer(rows), 5, 0.12, 2.0, 300, 0)
    gate, oracle = arms["divergence"], arms["oracle"]
    assert gate["saved_pct_ci95"][1] > oracle["saved_pct_ci95"][0]  # on their own they meet
    assert gate["below_oracle"] == pytest.approx(oracle["saved_pct"] - gate["saved_pct"])
    assert gate["below_oracle_ci95"][0] > 0
    assert oracle["below_oracle_ci95"] == [0, 0]


# -- recorded ----------------------------------------------------------------------------------------------------------

Tree = Callable[..., dict[str, Any]]
Written = Callable[[Path, list[Any]], Path]


def test_a_group_by_hand(tree: Tree, written: Written, tmp_path: Path) -> None:
    path = written(tmp_path, [tree(["abcde", "abxd", "ab"], [1, 0, 0])])
    buffer = read_recorded_groups([path], [2, 3, 5], 6)
    (group,) = buffer.groups
    assert (buffer.horizon, buffer.steps, group.rewards, group.turns, group.kind) == (
        6,
        (2, 3, 5),
        (0, 0, 1),  # in the order of their leaves
        11,
        "look",
    )
    assert (group.label, buffer.variances[0]) == ("mixed", pytest.approx(2 / 9))
    assert group.tail == {2: 3 + 2, 3: 2 + 1, 5: 0}
    assert group.signals[2][DISTANCE] == 0
    # abc-abx 1/3, abc-ab 1/3, abx-ab 1/3
    assert group.signals[3][DISTANCE] == pytest.approx(1 / 3)
    assert [group.signals[k][TERMINATION] for k in (2, 3, 5)] == pytest.approx([1 / 3, 1 / 3, 1])


def test_what_does_not_say_how_a_group_ends_is_left_out_and_counted(
    tree: Tree, written: Written, tmp_path: Path
) -> None:
    branching = tree(["abc", "abd"], [1, 0])
    branching["turns"][3]["parent"] = 0
    branching["rewards"]["total"] = [1, 0, 0]
    rows = [
        tree(["abc", "abd"], [1, 0]),
        tree(["abc", "abd"], [1, 0]) | {"stopped": True},
        tree(["abc", "abd"], [1, None]),
        tree(["abc", "abd"], [1, 0]) | {"rewards": {}},
        branching,
    ]
    buffer = read_recorded_groups([written(tmp_path, rows)], [2])
    assert len(buffer.groups) == 1
    assert sorted(buffer.left_out.values()) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{"], r"train.jsonl:1: "),
        ([(["ab", "ab"], [0, 0]), {"turns": []}], r"train.jsonl:2: .*\(KeyError: 'rewards'\)"),
        (["[1]"], r"train.jsonl:1: "),
        ([], "the file is empty"),
        ([(["abc", "abd"], [1, None])], "1 with fewer than two rewarded rollouts"),
        ([(["a", "b"], [1, 0])], "the longest rollout has 1 turns, so a gate at step 2 .*method=grpo"),
    ],
)
def test_what_is_refused(tree: Tree, written: Written, tmp_path: Path, rows: list[Any], message: str) -> None:
    path = written(tmp_path, [tree(*row) if isinstance(row, tuple) else row for row in rows])
    with pytest.raises(InputError, match=message):
        read_recorded_groups([path], [2])


@pytest.fixture
def arms(tree: Tree, written: Written, tmp_path: Path) -> tuple[Path, Path]:
    """Of three groups the gate cuts the first, rightly, and the second, wrongly; it looked at step 2."""
    free = [tree(["abcd", "abcd"], [0, 0]), tree(["abcd", "abcc"], [0, 1]), tree(["abcd", "xyz"], [0, 0])]
    cut = [tree(["ab", "ab"], [0, 0]), tree(["ab", "ab"], [0, 0]), tree(["abcd", "xyz"], [0, 0])]
    for side in (free, cut):
        for number, group in enumerate(side):
            stop = side is cut and number < 2
            looks = [{"step": 2, "values": {}, "stop": stop}] if side is cut else []
            group |= {"iteration": 0, "state": {"id": f"s{number}"}, "stopped": stop, "looks": looks}
            for turn in group["turns"]:
                turn["tokens"] = 3
    paths = []
    for name, side in (("never", free), ("gate", cut)):
        (tmp_path / name / "seed0" / "rollouts").mkdir(parents=True)
        written(tmp_path / name / "seed0" / "rollouts", side)
        paths.append(tmp_path / name)
    return paths[0], paths[1]


def test_savings_and_precision_by_hand(arms: tuple[Path, Path]) -> None:
    found = saving_in_paired_groups(*arms, resamples=200, seed=0)
    assert (found["groups"], found["baseline"], found["gated"]) == (3, 8 + 8 + 7, 4 + 4 + 7)
    assert found["saved_pct"] == pytest.approx(100 * 8 / 23) == found["tokens_saved_pct"]
    assert found["ci95"][0] < found["saved_pct"] < found["ci95"][1]
    assert [found[key] for key in ("cut", "tp", "fp", "precision", "recall")] == [2, 1, 1, 0.5, 0.5]
    assert found["first_steps_pct"] == found["matched_pct"] == 100


def test_groups_that_differ_before_the_gate_looked_are_told(arms: tuple[Path, Path]) -> None:
    (path,) = arms[1].glob("seed*/rollouts/*.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"text": "x"', '"text": "w"'), encoding="utf-8")
    found = saving_in_paired_groups(*arms, resamples=10, seed=0)
    assert found["first_steps_pct"] == pytest.approx(200 / 3) and found["matched_pct"] == 0


Made = Callable[..., Buffer]


def looked(buffer: Buffer, said: list[float | None], iterations: list[int], name: str = "mixed_probability") -> Buffer:
    groups = [
        replace(group, iteration=iteration, looks={} if value is None else {5: {name: value}})
        for group, value, iteration in zip(buffer.groups, said, iterations, strict=True)
    ]
    return replace(buffer, groups=tuple(groups))


LOOKED = [("mixed", 0.1, 4), ("mixed", 0.4, 4), ("all_fail", 0.2, 4), ("all_succeed", 0.3, 4), ("mixed", 0.9, 0)]


def test_a_table_by_hand(make_buffer: Made) -> None:
    buffer = looked(make_buffer(LOOKED), [0.8, 0.9, 0.1, 0.7, None], [0, 1, 1, 2, 2])
    table = looks_table(buffer, 200, 0)
    assert table.keys() == {"5"} and list(table["5"]) == ["all"]  # one late group ranks nothing
    rows = table["5"]["all"]
    assert list(rows) == ["mixed_probability", *SIGNALS]
    mine, theirs = rows["mixed_probability"], rows[DISTANCE]
    # of the four pairs of a mixed and a uniform group: all ranked by the prediction, by d_K those of the second alone
    assert (mine["auroc"], theirs["auroc"], mine["over_d"], theirs["over_d"]) == (1.0, 0.5, 0.5, 0.0)
    assert mine["rho"] == pytest.approx(stats.spearmanr([0.8, 0.9, 0.1, 0.7], [0.25, 0.25, 0, 0]).statistic)
    assert (mine["groups"], mine["zero_variance"]) == (4, 2)
    assert mine["over_d_ci95"][0] <= 0.5 <= mine["over_d_ci95"][1] and theirs["over_d_ci95"] == [0.0, 0.0]


def test_looks_are_read_from_records(tree: Tree, written: Written, tmp_path: Path) -> None:
    def row(paths: list[str], rewards: list[float], iteration: int, said: float) -> dict[str, Any]:
        look = {"step": 2, "values": {"mixed_probability": said}, "stop": False}
        return tree(paths, rewards) | {"iteration": iteration, "looks": [look]}

    rows = [
        row(["abcd", "abd"], [1, 0], 3, 0.7),
        row(["abc", "axc"], [0, 0], 2, 0.2),
        row(["abc", "axc"], [0, 0], 0, 0.9),
    ]
    report = gate_report(written(tmp_path, rows), Settings(k=2, steps=(2,), resamples=20))
    assert report["looks"]["2"]["late"]["mixed_probability"]["auroc"] == 1.0
    assert report["looks"]["2"]["all"]["mixed_probability"]["auroc"] == 0.5
    assert report["looks"]["2"]["all"][DISTANCE]["auroc"] == 0.0


# -- gate report script ------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[4]


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert gate_script.main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def run(tree: Any, written: Any, tmp_path: Path) -> Path:
    """A run whose groups fail where they agree: 6 that agree and fail, 6 that do not and are mixed."""
    rng = random.Random(0)
    alike = [tree(["abcdef"] * 4, [0] * 4) for _ in range(6)]
    apart = [tree(["".join(rng.choice("abcdef") for _ in range(8)) for _ in range(4)], [1, 0, 0, 1]) for _ in range(6)]
    (tmp_path / "rollouts").mkdir()
    written(tmp_path / "rollouts", alike + apart)
    return tmp_path


def test_recorded_rollouts(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    report = report_of(capsys, f"data={run}", "k=3", "steps=2,3", "resamples=100")
    assert (report["source"], report["groups"], report["zero_variance"], report["horizon"]) == ("recorded", 12, 6, 8)
    assert [report["t1"]["0.12"][key] for key in ("cut", "tp", "fp", "precision")] == [6, 6, 0, 1.0]
    assert set(report["t7"]) == {"2", "3"}
    # 6 groups x 4 rollouts x 3 turns after step 3, of 6 x 24 + 6 x 32 turns
    assert report["tier1"]["saved_pct"] == pytest.approx(100 * 72 / 336)
    assert report["tier1"]["unit"] == "turns" and not report["tier1"]["measured"]
    assert report["t8"]["look"]["auroc"] == 1.0
    assert report == report_of(capsys, f"data={run / 'rollouts/train.jsonl'}", "k=3", "steps=2,3", "resamples=100") | {
        "data": str(run)
    }


@pytest.mark.parametrize(
    "arguments", ["data=", "data={} kk=3", "data={} k=3 k=4", "data={} k=three", "data={} k=0", "data={}/no"]
)
def test_bad_input_gets_one_message(capsys: pytest.CaptureFixture[str], run: Path, arguments: str) -> None:
    assert gate_script.main(arguments.format(run).split()) == 2
    captured = capsys.readouterr()
    assert arguments.split()[-1].partition("=")[0] in captured.err
    assert captured.err.count("\n") == 1 and not captured.out
