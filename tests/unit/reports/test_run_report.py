"""The page itself: self-contained, well-formed, escaped, bounded, and shorter where a run left less."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from turnwise.runs.page import report, write_report
from turnwise.runs.read_run import read_run

# -- run report --------------------------------------------------------------------------------------------------------

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = '</pre></svg><script>alert(1)</script><img src="http://evil.example/x.png" onerror=alert(2)>&amp;{{ 7*7 }}'


class Page(HTMLParser):
    """Tags, attributes and text of a page, with what is not closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text, self.open, self.crossed = Counter(), [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data):
        self.text.append(data)

    @property
    def said(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def page_text(run_folder):
    return write_report(read_run(run_folder)).read_text()


def assert_self_contained(page: Page, text: str):
    assert page.tags["script"] == 0
    assert page.tags.keys().isdisjoint({"link", "iframe", "img", "object", "embed", "base", "form", "image"})
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in {"href", "src", "xlink:href", "action", "data", "srcset"}:
            assert value.startswith("#"), (tag, name, value)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


@pytest.mark.slow
def test_nothing_is_fetched_from_anywhere(page_text):
    page = Page(page_text)
    assert_self_contained(page, page_text)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert ("meta", "content", policy) in page.attributes
    assert "http" not in re.sub(r'http-equiv="Content-Security-Policy"', "", page_text)


def test_tags_nest_and_ids_are_unique(page_text):
    page = Page(page_text)
    assert page.crossed == []
    assert page.open == []
    ids = Counter(value for _, name, value in page.attributes if name == "id")
    assert [name for name, times in ids.items() if times > 1] == []
    targets = {value[1:] for _, name, value in page.attributes if name in {"href", "xlink:href"}}
    targets |= set(re.findall(r"url\(#([^)]+)\)", page_text))
    assert targets <= ids.keys()


def without_figures(folder):
    for name in ("metrics.jsonl", "profile.parquet"):
        (folder / name).unlink()
    return folder


def test_hostile_text_stays_text(write_run, make, tmp_path):
    folder = without_figures(write_run(tmp_path / "run", states=20))
    tree = make.local_tree(np.random.default_rng(0)) | {"expert": HOSTILE}
    tree["state"] |= {"task": HOSTILE, "messages": [{"role": HOSTILE, "content": HOSTILE}]}
    for turn in tree["turns"]:
        turn |= {"text": HOSTILE, "observation": HOSTILE}
    shutil.rmtree(folder / "rollouts")
    (folder / "rollouts").mkdir()
    (folder / "rollouts" / "0.jsonl").write_text(json.dumps(tree) + "\n")
    raw = make.result() | {"method": HOSTILE, "commit": HOSTILE}
    raw["ood"] = {"base": {HOSTILE: 1.0}, "after": {HOSTILE: 2.0}, "mean_change": 1.0}
    (folder / "result.json").write_text(json.dumps(raw))
    (folder / "config.yaml").write_text(f"name: '{HOSTILE}'\n")
    text = report(read_run(folder))
    page = Page(text)
    assert_self_contained(page, text)
    assert page.crossed == []
    assert page.said.count(" ".join(HOSTILE.split())) >= 6


@pytest.mark.parametrize(
    "missing",
    [
        ["rollouts", "profile.parquet"],  # as sft leaves it
        ["result.json"],  # interrupted while training
        ["result.json", "rollouts", "profile.parquet", "metrics.jsonl", "config.yaml"],
    ],
    ids=["sft", "interrupted", "empty"],
)
def test_a_run_that_left_less_gets_a_shorter_page(run_folder, tmp_path, missing):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns(*missing))
    if "metrics.jsonl" not in missing:
        rows = [{"iteration": i, "phase": "train", "train/reward_mean": 0.1 * i} for i in range(4)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = report(read_run(folder))
    page = Page(text)
    assert page.crossed == []
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert ("Figures" in headings) == ("metrics.jsonl" not in missing)
    assert ("Mean rewards of the profiled turns" in page.said) == ("profile.parquet" not in missing)


# -- read run ----------------------------------------------------------------------------------------------------------


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_empty_folder_is_a_run_that_left_nothing(tmp_path):
    run = read_run(tmp_path)
    assert run.result is None
    assert run.series("train/kl")[0].size == 0
    assert any(note.startswith("result.json: ") for note in run.notes)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_run(tmp_path / "nowhere")


def test_a_torn_last_line_is_counted_and_a_repeated_iteration_counts_once(tmp_path):
    rows = [{"iteration": i, "phase": "train", "train/loss": value} for i, value in ((0, 1.0), (1, 2.0), (1, 5.0))]
    write_lines(tmp_path / "metrics.jsonl", [*rows, {"iteration": 2, "train/loss": float("nan"), "train/kl": True}])
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"iteration": 3, "train/lo')
    run = read_run(tmp_path)
    iterations, values = run.series("train/loss")
    assert (iterations.tolist(), values.tolist()) == ([0, 1], [1.0, 5.0])
    assert "train/kl" not in run.metrics
    assert any("metrics.jsonl: 1 unreadable line left out" in note for note in run.notes)


def test_replies_of_held_out_dialogues_are_paired_and_the_changed_ones_shown_first(make, tmp_path):
    folder = make.write_run(tmp_path / "run", states=20)
    result = json.loads((folder / "result.json").read_text())
    change = {"base": 50.0, "after": 50.0, "delta": 0.0, "delta_ci95": [-9.5, 9.5]}
    result["held_out"] = dict.fromkeys(("functional", "strict", "nll"), change) | {"replies": 4, "dialogues": 4}
    (folder / "result.json").write_text(json.dumps(result))
    assert 'id="said"' not in report(read_run(folder))  # no replies were saved

    def reply(name, said, accepted):
        return {"reply": name, "expert": f"shown {name}", "said": said, "greedy": [[accepted, 0.0]]}

    base = [reply("d1", "yes", 1.0), reply("d2", "no idea", 0.0), reply("d3", "hm", 0.0), reply("d4", "go", 1.0)]
    after = [reply("d4", "stay", 0.0), reply("d3", "ah", 0.0), reply("d2", "book it", 1.0), reply("d1", "yes", 1.0)]
    unpaired = [reply("unsaid", None, 0.0), {"reply": "bare"}, {"task": "a", "success": 1}]
    write_lines(folder / "evaluation" / "base.jsonl", [*unpaired, *base, reply("before", "x", 0.0)])
    write_lines(folder / "evaluation" / "after.jsonl", [reply("unsaid", "x", 1.0), *unpaired[1:], *after])
    said = Page(report(read_run(folder))).said
    changed = "d4 shown d4 accepted go not accepted stay d2 shown d2 not accepted no idea accepted book it"
    assert f"{changed} d3 shown d3 not accepted hm not accepted ah d1 shown d1 accepted yes accepted yes" in said
    assert not any(f"shown {name}" in said for name in ("unsaid", "before"))
