"""docs/extending.md: its files, written into a folder of somebody else's, are parts that every script takes."""

from __future__ import annotations

import math
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.envs.demonstrations import check_forks, replay
from tests.unit.envs.hostile import check_hostile

from turnwise.config.check import check_config
from turnwise.config.schema import build, compose_config
from turnwise.types import RolloutTree, State, Task, Turn

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```(?:python|yaml)\n# (mine/\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^python (\S+\.py) (.+)$", PAGE.split("\n## Try them\n")[1], re.MULTILINE)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files in an empty folder, which is then where we stand, on Python's path as the page says."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    yield tmp_path
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


def composed(*overrides: str) -> Any:
    return compose_config([*overrides, "hydra.searchpath=[file://mine/conf]"], ROOT / "conf")


def test_every_training_command_of_the_page_passes_the_check(mine: Path) -> None:
    for script, arguments in COMMANDS:
        words = shlex.split(arguments)
        assert "hydra.searchpath=[file://mine/conf]" in words
        if script == "train.py":
            check_config(composed(*words[:-1]))


def test_a_world_of_ones_own_is_checked_like_ours(mine: Path) -> None:
    world = build(composed("env=thermostat"), "env")
    episodes = [replay(world, task) for task in world.tasks("train", 20)]
    assert all(episode.won and episode.alike and all(episode.accepted) for episode in episodes)
    actions = ["warmer", "cooler", "done", "?"]
    assert check_forks(world, episodes, actions, random.Random(0)) == []
    assert check_hostile(world, [episode.task for episode in episodes], actions, 100) == []


@pytest.mark.slow
def test_the_contract_suite_passes_the_pages_world(mine: Path) -> None:
    words = "env=thermostat hydra.searchpath=[file://" + str(mine / "mine" / "conf") + "]"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-k",
            "own",
            "tests/unit/envs/test_contract.py",
            "-p",
            "no:cacheprovider",
        ],
        cwd=ROOT,
        env={**os.environ, "TURNWISE_ENV": words, "PYTHONPATH": str(mine / "mine")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_rule_and_the_gate_by_hand(mine: Path) -> None:
    cfg = composed("method=grpo", "env=thermostat", "advantage=fading", "gate=unanimous", "gate.k=2")
    rule, gate = build(cfg, "advantage"), build(cfg, "gate")
    task = Task("thermostat", "train/0", "train", {"now": 19, "asked": 20})
    texts = [(-1, "warmer"), (0, "warmer"), (1, "done"), (-1, "warmer"), (3, "warmer")]
    tree = RolloutTree(State("s", task, (1,)), [Turn(parent, [1], [0.0], text) for parent, text in texts])
    assert rule(tree, {"total": [1.0, 0.0]}).advantage == pytest.approx([1, 0.75, 0.5, -1, -0.5], abs=1e-4)
    assert rule(tree, {"total": [1.0, 1.0]}).weight == [0] * 5
    assert gate(tree, 2) and tree.looks[0].values == {"different": 1.0}


def test_the_world_does_what_its_text_says(mine: Path) -> None:
    world = build(composed("env=thermostat", "env.horizon=3"), "env")
    task = Task("thermostat", "train/0", "train", {"now": 19, "asked": 20})
    session = world.reset(task)
    assert world.accepts(session, " warmer", "cooler") and not world.accepts(session, "cooler", "warmer")
    assert session.step("please").observation == "19 degrees"
    other = session.fork()
    assert session.step("warmer").observation == "20 degrees" and other.now == 19
    assert session.step("done").won and other.step("done").done and not other.won
    assert not {t.data["asked"] for t in world.tasks("train", 99)} & {t.data["asked"] for t in world.tasks("seen", 99)}


def test_the_reward_by_hand(mine: Path) -> None:
    """Two rollouts from the root: a win in two turns, a loss in one; then the same, whose world failed."""
    reward = build(composed("env=thermostat", "reward=brief", "reward.cost=0.1"), "reward")
    task = Task("thermostat", "train/0", "train", {"now": 19, "asked": 20})
    turns = [
        Turn(-1, [1], [0.0]),
        Turn(0, [1], [0.0], done=True, info={"won": True}),
        Turn(-1, [1], [0.0], done=True, info={"won": False}),
    ]
    tree = RolloutTree(State("s", task, (1,)), turns)
    assert reward(tree) == {"won": [1, 0], "turns": [2, 1], "total": [pytest.approx(0.8), pytest.approx(-0.1)]}
    tree.invalid = {2}
    assert math.isnan(reward(tree)["total"][1])
