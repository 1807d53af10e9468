"""Sweep files: what they may say, and what is told where they may not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from turnwise.console import typed_arguments
from turnwise.errors import InputError
from turnwise_study.sweeps.jobs import for_hydra, job_of, jobs, read_sweep_request
from turnwise_study.sweeps.sweep_file import Comparison, claim_in_sweep_file, find_sweep, read_sweep, sweep_names

# -- sweep file --------------------------------------------------------------------------------------------------------

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
    assert claim_in_sweep_file(text, ROWS) == Comparison(above, below, margin, text)


def test_a_claim_may_be_of_one_scale() -> None:
    assert claim_in_sweep_file("a > 44.5 at paper", ROWS) == Comparison("a", 44.5, 0, "a > 44.5 at paper", at="paper")
    assert claim_in_sweep_file("a < b + 2 at tiny", ROWS).at == "tiny" and claim_in_sweep_file("a < b", ROWS).at is None


@pytest.mark.parametrize(
    "text", ["a", "a > ", "a >= b", "a > c", "0.5 > a", "a > b * 2", "a > b - two", "a > b at huge"]
)
def test_a_bad_claim_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="directions"):
        claim_in_sweep_file(text, ROWS)


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
    several["fig1"]["rows"]["a"] = {"numbers": {"nothing": 1}}
    (conf / "sweep" / "q.yaml").write_text(yaml.safe_dump(several))
    assert find_sweep("q_tab1", conf)  # the mistake is in another one
    with pytest.raises(InputError, match=r"q\.yaml: the sweep q_fig1 .*\n.*nothing"):
        find_sweep("q_fig1", conf)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": {"a": {"overrides": "x=1", "same": "p_tab1/base"}}}, "leave out `overrides`, `at` and `starts`"),
        ({"rows": {"a": {"numbers": {"nothing": 1}}}}, "rows.a.numbers: there is no 'nothing'"),
        ({"rows": {"a": {"numbers": {"score": float("nan")}}}}, "rows.a.numbers.score"),
        ({"rows": {"a": {"numbers": {"score": "high"}}}}, "rows.a.numbers.score"),
        ({"colums": {"score": "in_domain.after"}}, "colums"),
        ({"rows": {"a": {"need": {}}}}, "rows.a.need"),
        ({"seeds": [0, 0]}, "each seed only once"),
        ({"seeds": []}, "at least one"),
        ({"scales": {"huge": "x=1"}}, "scales.huge"),
        ({"curve": "epochs"}, "curve"),
        ({"curve": "updates", "panels": {"Left": ["c"]}}, "panels.Left: there is no 'c'"),
        ({"directions": {"m": ["ours > nobody"]}}, "names 'nobody', which is neither a row"),
    ],
)
def test_every_mistake_names_its_key(conf: Path, change: dict[str, object], words: str) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "directions": {}} | change))
    with pytest.raises(InputError, match=words) as caught:
        read_sweep(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [("a: [", "not YAML"), ("[a]", "it needs the keys paper, entry")])
def test_what_is_no_sweep_is_told(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InputError, match=words):
        read_sweep(tmp_path / "bad.yaml")
    with pytest.raises(InputError, match="conf/sweep"):
        read_sweep(tmp_path / "none.yaml")


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
    path.write_text(path.read_text().replace("least: {in_domain.after: 2", "least: {in_domain.before: 2"))
    with pytest.raises(InputError, match="least"):
        read_sweep(path)


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_all_rows_of_a_seed_come_before_the_next_seed(conf: Path) -> None:
    found = jobs(read_sweep_request(["sweep=p_tab1"], conf))
    assert [(job.row, job.seed) for job in found] == [(r, s) for s in (0, 1) for r in ("base", "ours", "big", "theirs")]
    assert [job.row for job in found if job.cannot] == ["big", "theirs"] * 2


def test_the_command_line_comes_last_and_makes_another_folder(conf: Path) -> None:
    plain, changed = (
        job_of(read_sweep_request(["sweep=p_tab1", *more], conf), "ours", 1) for more in ([], ["env.horizon=4"])
    )
    assert plain.overrides == ("scale=tiny", "method=pivotrl", "rollout.states=32", "name='p/tab1/ours'", "seed=1")
    assert changed.overrides[-3:] == ("env.horizon=4", "name='p/tab1/ours/env.horizon-4'", "seed=1")


def test_scales_have_folders_of_their_own_and_ways_of_running_do_not(conf: Path) -> None:
    request = read_sweep_request(
        ["sweep=p_tab1", "scale=paper", "fresh=true", "paths.cache=/x", "judge.client.url=http://y", "eval.every=4"],
        conf,
    )
    job = job_of(request, "ours", 0)
    assert job.name == "p/tab1/ours/scale-paper"
    assert job.overrides[0] == "scale=paper_p"
    assert "rollout.states=32" not in job.overrides  # that was the tiny scale's
    assert request.fresh
    place = "hydra.searchpath=[file://mine/conf]"
    found = job_of(read_sweep_request(["sweep=p_tab1", place], conf), "ours", 0)
    assert found.name == "p/tab1/ours" and place in found.overrides  # reports compose the row with it


def test_a_row_that_is_the_same_has_the_others_runs(conf: Path) -> None:
    figure, table = (read_sweep_request([f"sweep={name}"], conf) for name in ("p_fig1", "p_tab1"))
    assert job_of(figure, "ours", 0) == job_of(table, "ours", 0)
    assert job_of(figure, "ours", 0).name == "p/tab1/ours"
    assert job_of(figure, "big", 0).cannot == "one size is shipped"
    given = read_sweep_request(["sweep=p_fig1", "scale=paper", "data.file=x"], conf)
    assert job_of(given, "big", 0).cannot is None


def test_a_row_starts_from_what_the_other_leaves(conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    after = "  after: {overrides: method=toolrl, starts: ours}\ndirections:"
    path.write_text(path.read_text().replace("directions:", after) + "leaves: {paper: model}\n")
    tiny, paper = (
        job_of(read_sweep_request(["sweep=p_tab1", f"scale={scale}"], conf), "after", 1) for scale in ("tiny", "paper")
    )
    assert tiny.starts == "p/tab1/ours" and tiny.begin == "policy.start='outputs/p/tab1/ours/seed${seed}/adapter'"
    assert paper.starts == "p/tab1/ours/scale-paper"
    assert paper.begin == "policy.model='outputs/p/tab1/ours/scale-paper/seed${seed}/model'"  # all weights were trained
    assert tiny.begin in tiny.overrides and paper.begin in paper.overrides


def test_rows_and_seeds_are_picked(conf: Path) -> None:
    found = jobs(read_sweep_request(["sweep=p_tab1", "rows=ours,base", "seed=3,5"], conf))
    assert [(job.row, job.seed) for job in found] == [("ours", 3), ("base", 3), ("ours", 5), ("base", 5)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep=p_tab1", "rows=our"], "did you mean 'ours'"),
        (["sweep=p_tab1", "seed=x"], "whole numbers"),
        (["sweep=p_tab1", "seed=0,-1"], "seed=0,-1"),
        (["sweep=p_tab1", "scale=huge"], "scale=huge: the scale of a sweep must be tiny or paper"),
        (["sweep=p_tab1", "name=x"], "sets the names and folders of its runs"),
        (["sweep=p_tab1", "paths.out=x"], "sets the names and folders of its runs"),
        (["sweep=p_tab1", "loss.clip_high=0.2,0.3"], "takes one value"),
        (["sweep=p_tab1", "loss.clip_high=choice(0.2,0.3)"], "takes one value"),
        (["sweep=p_tab1", "nonsense"], "key=value"),
        (["sweep=p_tab1", "seed=0", "seed=1"], "seed=1: seed is given twice"),
        (["sweep="], "there is no sweep ''"),
    ],
)
def test_what_cannot_be_asked_is_told(conf: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        jobs(read_sweep_request(arguments, conf))


def test_what_is_said_of_training_does_not_reach_a_row_that_trains_nothing(conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace("{label: Base,", "{label: Base, trains: false,"))
    training = ["iterations=3", "update.learning_rate=1e-3", "loss.clip_high=0.3", "allocator=trace"]
    both = ["env.horizon=4", "rollout.sampling.temperature=0.7", "trainer.accelerator=gpu"]
    plain = job_of(read_sweep_request(["sweep=p_tab1"], conf), "base", 0)
    assert job_of(read_sweep_request(["sweep=p_tab1", *training], conf), "base", 0) == plain
    trained = job_of(read_sweep_request(["sweep=p_tab1", *training], conf), "ours", 0)
    assert set(training) < set(trained.overrides) and trained.name != "p/tab1/ours"
    changed = job_of(read_sweep_request(["sweep=p_tab1", *training, *both], conf), "base", 0)
    assert set(both) < set(changed.overrides) and not set(training) & set(changed.overrides)
    assert (
        "rollout.states_of=1"
        in job_of(read_sweep_request(["sweep=p_tab1", "rollout.states_of=1"], conf), "base", 0).overrides
    )


def test_a_row_that_trains_nothing_has_no_iterations_whatever_its_scale_sets(conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    rows = "  still: {trains: false, overrides: method=grpo iterations=2}\ndirections:"
    path.write_text(path.read_text().replace("directions:", rows))
    still, ours = (job_of(read_sweep_request(["sweep=p_tab1"], conf), row, 0).overrides for row in ("still", "ours"))
    assert [item for item in still if item.startswith("iterations")][-1] == "iterations=0"
    assert "iterations=0" not in ours


def test_a_run_of_a_sweep_tells_the_command_that_was_typed_and_no_folder(conf: Path) -> None:
    arguments = ["sweep=p_tab1", "data.file=it's ${x}", "eval.tasks=[1,'b']", "hydra/launcher=joblib_2"]
    assert typed_arguments(for_hydra(arguments, conf)) == arguments
    assert typed_arguments(["-m", "method=sft,grpo"]) == ["-m", "method=sft,grpo"]
