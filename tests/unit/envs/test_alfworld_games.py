"""The parts of env=alfworld that need no engine: PDDL problems, messages, bad input."""

from __future__ import annotations

import pickle
import sys

import pytest

from turnwise.envs.alfworld import AlfworldEnvironment, MissingEngineError
from turnwise.envs.alfworld.official import OfficialGames
from turnwise.envs.alfworld.pddl_problem import Scene, goal, pddl_id, problem
from turnwise.envs.alfworld.workers import Pool
from turnwise.types import Task


def small(**changes):
    settings = {
        "receptacles": ("cabinet 1", "cabinet 2", "sinkbasin 1"),
        "objects": {"mug 1": "cabinet 2", "mug 2": "sinkbasin 1"},
        "kind": "pick_and_place_simple",
        "goal": {"object": "mug", "receptacle": "cabinet"},
        "sentence": "put a mug in cabinet",
    }
    return Scene(**settings | changes)


def test_ids_count_backwards():
    """The engine gives the first id the highest number, and says "basin" once for a sink."""
    assert [pddl_id(f"cabinet {n}", 3) for n in (3, 2, 1)] == ["cabinet_bar_000", "cabinet_bar_001", "cabinet_bar_002"]
    assert pddl_id("sinkbasin 1", 1) == "sink_bar_000_bar_sinkbasin"


def test_problem_says_what_the_scene_says():
    text = problem(small())
    for fact in (
        "(inReceptacle mug_bar_001 cabinet_bar_000)",  # mug 1 of 2 in cabinet 2 of 2
        "(objectAtLocation mug_bar_001 loc_bar_002)",
        "(openable cabinet_bar_001)",
        "(pickupable mug_bar_000)",
        "(cleanable mug_bar_000)",
        "(isReceptacleObject mug_bar_000)",
        "(canContain cabinetType mugType)",
        "(canContain sinkbasinType mugType)",
        "(receptacleType sink_bar_000_bar_sinkbasin sinkbasinType)",
    ):
        assert text.count(fact) == 1, fact
    assert "(openable sink_bar" not in text and "(toggleable " not in text and ":metric" not in text
    assert text.count("(") == text.count(")")
    lamp = problem(small(objects={"desklamp 1": "cabinet 1"}))
    assert "(toggleable desklamp_bar_000)" in lamp and "pickupable" not in lamp and "isReceptacleObject" not in lamp
    assert "canContain cabinetType desklampType" not in lamp


def test_goals_differ_by_kind():
    assert "isHot" in goal(small(kind="pick_heat_then_place_in_recep"))
    assert "(not (= ?o ?p))" in goal(small(kind="pick_two_obj_and_place"))
    look = goal(small(kind="look_at_obj_in_light", goal={"object": "mug", "lamp": "desklamp"}))
    assert "desklampType" in look and "holds ?a ?o" in look


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"receptacles": ("cabinet 1", "cabinet 3", "sinkbasin 1")}, "without gaps"),
        ({"objects": {"mug 1": "desk 1"}}, "'mug 1' is in 'desk 1', which is not among the receptacles"),
        ({"objects": {"Mug 1": "cabinet 1"}}, "name 'Mug 1' must be a type and a number"),
        ({"objects": {"mug": "cabinet 1"}}, "name 'mug' must be a type and a number"),
        (
            {"sentence": "put a mug in {__import__('os').getcwd()}"},
            r"text: must be lower-case words .*got .put a mug in \{__import__",
        ),  # the engine's grammar would run it
        ({"sentence": "put a #mug# in cabinet"}, "text: must be lower-case words .*got 'put a #mug# in cabinet'"),
        ({"sentence": 7}, "text: must be lower-case words .*got 7"),
        ({"goal": {"object": "{1 + 1}", "receptacle": "cabinet"}}, r"goal: .*got '\{1 \+ 1\}'"),
    ],
)
def test_bad_scenes_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_missing_engine_says_how_to_get_it(tmp_path):
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')  # an interpreter without site-packages
    broken.chmod(0o755)
    with pytest.raises(MissingEngineError, match=r"requirements-alfworld\.txt"):
        Pool(python=str(broken)).worker()
    with pytest.raises(MissingEngineError, match="cannot run"):
        Pool(python=str(tmp_path / "nowhere")).worker()


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


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="horizon"):
        AlfworldEnvironment(horizon=0)
    with pytest.raises(ValueError, match="workers"):
        AlfworldEnvironment(workers=0)
    with pytest.raises(ValueError, match="timeout"):
        AlfworldEnvironment(timeout=0)


def test_travels_to_other_processes():
    environment = AlfworldEnvironment(horizon=7, workers=3, timeout=4.0, python="somewhere")
    twin = pickle.loads(pickle.dumps(environment))
    assert (twin.horizon, twin.pool.timeout, twin.pool.python) == (7, 4.0, "somewhere")
    assert twin.tasks("seen", 2) == environment.tasks("seen", 2)


def test_tasks_of_other_environments_are_refused():
    environment = AlfworldEnvironment()
    with pytest.raises(ValueError, match="made for env 'household', but it is used with env 'alfworld'"):
        environment.reset(Task("household", "train/0", "train"))
    with pytest.raises(ValueError, match=r"task train/0: its data is not a task of env=household"):
        environment.reset(Task("alfworld", "train/0", "train"))
