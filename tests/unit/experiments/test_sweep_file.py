"""Sweep files: what they may say, and what is told where they may not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from turnwise.errors import InputError
from turnwise_study.sweeps.sweep_file import Comparison, comparison, find_sweep, read_sweep, sweep_names

ROWS = dict.fromkeys(["a", "b", "0.12"])


@pytest.mark.parametrize(
    ("text", "above", "below", "margin"),
    [
        ("a > b", "a", "b", 0),
        ("a < b", "b", "a", 0),
        ("a > b - 2", "a", "b", -2),
        ("a > b + 1.5", "a", "b", 1.5),
        ("a < b + 2", "b", "a", -2),  # b - a > -2
        ("a > 0.5", "a", 0.5, 0),
        ("a < -1", -1.0, "a", 0),
        ("0.12 > 0.39", "0.12", 0.39, 0),  # a row may be called like a number
    ],
)
def test_a_claim_is_read(text: str, above: str | float, below: str | float, margin: float) -> None:
    assert comparison(text, ROWS) == Comparison(above, below, margin, text)


def test_a_claim_may_be_of_one_scale() -> None:
    assert comparison("a > 44.5 at paper", ROWS) == Comparison("a", 44.5, 0, "a > 44.5 at paper", at="paper")
    assert comparison("a < b + 2 at tiny", ROWS).at == "tiny" and comparison("a < b", ROWS).at is None


@pytest.mark.parametrize(
    "text", ["a", "a > ", "a >= b", "a > c", "0.5 > a", "a > b * 2", "a > b - two", "a > b at huge"]
)
def test_a_bad_claim_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="directions"):
        comparison(text, ROWS)


def test_words_in_a_string_are_a_list(conf: Path) -> None:
    sweep = find_sweep("p_tab1", conf)
    assert sweep.rows["base"].overrides == ("method=sft", "trainer.max_epochs=0")
    assert sweep.shared("tiny") == ("scale=tiny",)
    assert sweep.shared("paper") == ("scale=paper_p",)


def test_what_is_missing_and_what_gives_it(conf: Path) -> None:
    sweep = find_sweep("p_tab1", conf)
    assert sweep.missing(sweep.rows["ours"], "paper") is None
    assert sweep.missing(sweep.rows["big"], "tiny", ["data.file"]) == "one size is shipped"
    assert sweep.missing(sweep.rows["big"], "paper") == "the corpus: data.file=..."
    assert sweep.missing(sweep.rows["big"], "paper", ["data.file"]) is None
    assert sweep.missing(sweep.rows["theirs"], "tiny", ["data.file"]) is not None


def test_a_file_of_several_sweeps_has_a_key_for_each(conf: Path) -> None:
    several = {key: yaml.safe_load((conf / "sweep" / f"p_{key}.yaml").read_text()) for key in ("tab1", "fig1")}
    (conf / "sweep" / "q.yaml").write_text(yaml.safe_dump({**several, "of_two_words": several["fig1"]}))
    assert sweep_names(conf) == ["p_fig1", "p_tab1", "q_fig1", "q_of_two_words", "q_tab1"]
    assert find_sweep("q_of_two_words", conf).name == "q_of_two_words"
    assert find_sweep("q_tab1", conf).rows == find_sweep("p_tab1", conf).rows
    with pytest.raises(InputError, match="did you mean 'q_tab1'"):
        find_sweep("q_tab2", conf)
    several["fig1"]["rows"]["a b"] = {}
    (conf / "sweep" / "q.yaml").write_text(yaml.safe_dump(several))
    assert find_sweep("q_tab1", conf)  # the mistake is in another one
    with pytest.raises(InputError, match=r"q\.yaml: the sweep q_fig1 .*\n.*one word"):
        find_sweep("q_fig1", conf)


def test_a_wrong_name_is_told_with_the_right_one(conf: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'p_tab1'"):
        find_sweep("p_tab2", conf)
    with pytest.raises(InputError, match="the sweeps are p_fig1, p_tab1"):
        find_sweep("zzz", conf)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": {"a": {"overrides": "x=1", "same": "p_tab1/base"}}}, "leave out `overrides` and `at`"),
        ({"rows": {"a b": {}}}, "one word"),
        ({"rows": {"a": {"numbers": {"nothing": 1}}}}, "nothing is not one of the keys under `columns`"),
        ({"rows": {"a": {"numbers": {"score": float("nan")}}}}, "rows.a.numbers.score"),
        ({"rows": {"a": {"need": {}}}}, "rows.a.need"),
        ({"seeds": [0, 0]}, "each seed only once"),
        ({"seeds": []}, "at least one"),
        ({"scales": {"huge": "x=1"}}, "scales.huge"),
        ({"directions": {"m": ["ours > nobody"]}}, "names 'nobody', which is neither a row"),
    ],
)
def test_every_mistake_names_its_key(conf: Path, change: dict[str, object], words: str) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "directions": {}} | change))
    with pytest.raises(InputError, match=words) as caught:
        read_sweep(path)
    assert str(path) in str(caught.value)


def test_a_column_may_be_another_metric_at_one_scale(tmp_path: Path) -> None:
    path = tmp_path / "p_tab1.yaml"
    text = (
        "paper: P\nentry: Table 1\ntitle: T\ncolumns: {a: in_domain.after, b: null}\nrows: {x: {overrides: seed=0}}\n"
    )
    path.write_text(text + "columns_at: {paper: {b: ood.after}}\n")
    sweep = read_sweep(path)
    assert sweep.of_scale("tiny").columns == {"a": "in_domain.after", "b": None}
    assert sweep.of_scale("paper").columns == {"a": "in_domain.after", "b": "ood.after"}
    path.write_text(text + "columns_at: {paper: {c: ood.after}}\n")
    with pytest.raises(InputError, match=r"columns_at\.paper: c is not one of the keys under `columns`"):
        read_sweep(path)


def test_the_least_advantage_is_no_more_than_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "p_tab1.yaml"
    path.write_text(
        """
paper: P
entry: Table 1
title: Table 1
columns: {one: in_domain.after, two: in_domain.after, ratio: train/effective_groups}
rows:
  a: {overrides: method=sft, numbers: {one: 10, two: 20, ratio: 40}}
  b: {overrides: method=grpo, numbers: {one: 11, two: 20.5, ratio: 60}}
  c: {overrides: method=awpo, numbers: {one: 30}}
directions:
  in_domain.after: [b > a, c > a, a > b]
  train/effective_groups: [b > a]
least: {in_domain.after: 2, train/effective_groups: 0.05}
"""
    )
    sweep = read_sweep(path)
    ba, ca, ab = sweep.claims("in_domain.after")
    found = [sweep.least_advantage(one, "in_domain.after") for one in (ba, ca, ab)]
    assert found == [
        0.75,
        2,
        2,
    ]  # mean of 1 and 0.5; 20 in the one column that both have; the paper's points the other way
    (ratio,) = sweep.claims("train/effective_groups")
    assert sweep.least_advantage(ratio, "train/effective_groups") == 0.05  # the paper's is in percent
    assert sweep.paper_difference(ratio, "train/effective_groups") is None
    path.write_text(path.read_text().replace("least: {in_domain.after: 2", "least: {in_domain.before: 2"))
    with pytest.raises(InputError, match="least"):
        read_sweep(path)
