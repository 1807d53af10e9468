"""The page itself: self-contained, well-formed, escaped, bounded, and shorter where a run left less."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from turnwise_study.run_files import read_run
from turnwise_study.run_page import render, write_report

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
def report(run_folder):
    return write_report(run_folder).read_text()


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
def test_nothing_is_fetched_from_anywhere(report):
    page = Page(report)
    assert_self_contained(page, report)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert ("meta", "content", policy) in page.attributes
    assert "http" not in re.sub(r'http-equiv="Content-Security-Policy"', "", report)


def test_tags_nest_and_ids_are_unique(report):
    page = Page(report)
    assert page.crossed == []
    assert page.open == []
    ids = Counter(value for _, name, value in page.attributes if name == "id")
    assert [name for name, times in ids.items() if times > 1] == []
    targets = {value[1:] for _, name, value in page.attributes if name in {"href", "xlink:href"}}
    targets |= set(re.findall(r"url\(#([^)]+)\)", report))
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
    for name in ("base", "after"):
        row = {"split": HOSTILE, "task": HOSTILE, "mode": "greedy", "attempt": 0, "success": True, "turns": 1}
        row |= {"messages": [{"role": "assistant", "content": HOSTILE}]}
        (folder / "evaluation" / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    raw = make.result() | {"method": HOSTILE, "commit": HOSTILE}
    raw["ood"] = {"base": {HOSTILE: 1.0}, "after": {HOSTILE: 2.0}, "mean_change": 1.0}
    (folder / "result.json").write_text(json.dumps(raw))
    (folder / "config.yaml").write_text(f"name: '{HOSTILE}'\n")
    text = render(read_run(folder))
    page = Page(text)
    assert_self_contained(page, text)
    assert page.crossed == []
    assert page.said.count(" ".join(HOSTILE.split())) >= 6


@pytest.mark.parametrize(
    "missing",
    [
        ["rollouts", "profile.parquet"],  # as sft leaves it
        ["result.json", "evaluation"],  # interrupted while training
        ["result.json", "evaluation", "rollouts", "profile.parquet", "metrics.jsonl", "config.yaml"],
    ],
    ids=["sft", "interrupted", "empty"],
)
def test_a_run_that_left_less_gets_a_shorter_page(run_folder, tmp_path, missing):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns(*missing))
    if "metrics.jsonl" not in missing:
        rows = [{"iteration": i, "phase": "train", "train/reward_mean": 0.1 * i} for i in range(4)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = render(read_run(folder))
    page = Page(text)
    assert page.crossed == []
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert ("Before and after" in headings) == ("evaluation" not in missing)
    assert ("Figures" in headings) == ("metrics.jsonl" not in missing)
    assert ("Mean rewards of the profiled turns" in page.said) == ("profile.parquet" not in missing)


def test_a_huge_run_stays_a_page(write_run, tmp_path):
    folder = without_figures(write_run(tmp_path / "run", states=20))
    row = {"split": "seen", "mode": "greedy", "attempt": 0, "success": True, "turns": 1}
    row |= {"messages": [{"role": "assistant", "content": f"{i}" + "&" * 3_000} for i in range(40)]}
    for name in ("base", "after"):
        lines = [json.dumps(row | {"task": f"t{i}"}) for i in range(12)]
        (folder / "evaluation" / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "config.yaml").write_text("key: " + "<" * 200_000)
    assert 500_000 < len(render(read_run(folder)).encode()) < 2_000_000
