"""The parts of env=alfworld that need no engine: the folder of games, bad input."""

from __future__ import annotations

import sys

import pytest

from turnwise.types import Task
from turnwise_worlds.alfworld import AlfworldEnvironment, MissingEngineError
from turnwise_worlds.alfworld.environment import OfficialGames
from turnwise_worlds.alfworld.workers import AlfworldPool


def test_missing_engine_says_how_to_get_it(tmp_path):
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')  # an interpreter without site-packages
    broken.chmod(0o755)
    with pytest.raises(MissingEngineError, match=r"env\.python"):
        AlfworldPool(python=str(broken)).worker()
    with pytest.raises(MissingEngineError, match="cannot run"):
        AlfworldPool(python=str(tmp_path / "nowhere")).worker()


def test_missing_games_say_how_to_get_them(tmp_path):
    with pytest.raises(ValueError, match="alfworld-download"):
        AlfworldEnvironment(games=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="none of the folders train, valid_seen, valid_unseen"):
        AlfworldEnvironment(games=tmp_path)
    (tmp_path / "train").mkdir()
    games = OfficialGames(tmp_path)
    with pytest.raises(ValueError, match="got 'test'"):
        AlfworldEnvironment(games=tmp_path).tasks("test", 1)
    with pytest.raises(ValueError, match="no game file"):
        games.game(Task("alfworld", "x", "train", {"game": "train/x/game.tw-pddl"}))
    (tmp_path / "outside.tw-pddl").write_text("{}")
    inside = tmp_path / "games"
    (inside / "train").mkdir(parents=True)
    for path in ("../outside.tw-pddl", str(tmp_path / "outside.tw-pddl")):
        with pytest.raises(ValueError, match="no game file"):
            OfficialGames(inside).game(Task("alfworld", "x", "train", {"game": path}))
    (tmp_path / "train" / "game.tw-pddl").write_text('{"solvable":\n tru}')
    with pytest.raises(ValueError, match=r"game\.tw-pddl:2: broken JSON"):
        games.tasks("train", 1, 0)
