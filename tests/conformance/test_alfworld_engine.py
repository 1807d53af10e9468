"""The worker processes of env=alfworld and what it does with a user's own games, on the real engine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.conformance.alfworld_games import GeneratedAlfworld, problem, scene

from turnwise.env import Environment, EnvironmentFault
from turnwise_worlds.alfworld import AlfworldEnvironment
from turnwise_worlds.alfworld.workers import AlfworldPool

pytestmark = [pytest.mark.alfworld, pytest.mark.timeout(900)]


def test_fork_leaves_its_parent_alone_and_goes_on_like_it(real, games):
    task = replace(games("train")[3], env="alfworld")
    actions = [m["content"] for m in real.demonstrate(task).messages if m["role"] == "assistant"]
    session, half = real.reset(task), len(actions) // 2
    for action in actions[:half]:
        session.step(action)
    before, twin = session.admissible(), session.fork()
    straying = session.fork()
    for action in (straying.admissible()[0], "look", "xyz"):
        straying.step(action)
    for action in actions[half:]:  # the two take turns, so the engine changes its place at every step
        assert twin.step(action) == session.step(action)
    assert session.won and twin.won and not straying.won
    assert twin.actions == session.actions == tuple(actions)
    assert before != session.admissible()


def test_speed_up_changes_no_text(python, games):
    task = games("unseen")[1]
    built = scene(task.data)
    game = {"problem": problem(built), "sentence": built.sentence}
    transcripts = []
    for slow in (False, True):
        pool, rng = AlfworldPool(python=python, slow=slow), random.Random(5)
        worker = pool.worker()
        transcript = [worker.call(op="open", game=game)]
        for _ in range(25):
            at = transcript[-1]["id"]
            action = rng.choice([c for c in transcript[-1]["admissible"] if "go to" not in c or rng.random() < 0.3])
            transcript.append(worker.call(op="step", at=at, action=action))
        transcripts.append(transcript)
        pool.close()
    assert transcripts[0] == transcripts[1]


def test_is_an_environment(real):
    assert isinstance(real, Environment)
    assert real.same(" go  to desk 1 ", "go to desk 1") and not real.same("go to desk 2", "go to desk 1")


def test_dead_worker_is_a_fault_and_the_next_episode_lives(python):
    environment = GeneratedAlfworld(python=python)
    task = environment.tasks("train", 1)[0]
    session = environment.reset(task)
    os.kill(session._worker.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault):
        session.step("look")
    with pytest.raises(EnvironmentFault):
        session.fork()
    assert environment.reset(task).step("look").observation
    environment.close()


def test_worker_ends_with_its_parent(python):
    code = (
        "import os, sys; from turnwise_worlds.alfworld.workers import Pool; "
        "print(Pool(python=sys.argv[1]).worker().pid, flush=True); os.kill(os.getpid(), 9)"
    )
    path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.run([sys.executable, "-c", code, python], capture_output=True, text=True, env=path, check=False)
    status, deadline = Path(f"/proc/{int(parent.stdout)}/stat"), time.monotonic() + 20
    while status.exists() and ") Z " not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or ") Z " in status.read_text()


def test_silent_worker_is_a_fault(python):
    environment = GeneratedAlfworld(python=python, timeout=0.5)
    task = environment.tasks("train", 1)[0]
    worker = environment.pool.worker()
    worker.timeout = 30.0
    session = environment.reset(task)
    worker.timeout = 0.5
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(EnvironmentFault):
        session.step("look")
    environment.close()


def test_sessions_are_forgotten_by_their_worker(real):
    task = real.tasks("train", 1)[0]
    session = real.reset(task)
    at, worker = session._at, session._worker
    del session
    real.reset(task)
    with pytest.raises(EnvironmentFault, match="KeyError"):
        worker.call(op="step", at=at, action="look")


@pytest.fixture
def folder(tmp_path, python, ours):
    """A data folder as ``alfworld-download`` leaves it, with generated games in it."""
    found = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('alfworld').submodule_search_locations[0])"],
        capture_output=True,
        text=True,
        check=True,
    )
    data = Path(found.stdout.strip()) / "data"
    for i, task in enumerate(ours.tasks("seen", 2, seed=1)):
        place = tmp_path / "valid_seen" / f"game-{i}" / "trial_T2019"
        place.mkdir(parents=True)
        built = scene(task.data)
        grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", built.sentence)
        content = {"pddl_domain": (data / "alfred.pddl").read_text(), "grammar": grammar}
        content |= {"pddl_problem": problem(built), "solvable": True, "walkthrough": None}
        (place / "game.tw-pddl").write_text(json.dumps(content))
    skipped = tmp_path / "valid_seen" / "pick_two-AppleSliced" / "trial"
    skipped.mkdir(parents=True)
    (skipped / "game.tw-pddl").write_text("{}")
    return tmp_path


def test_official_games(folder, python):
    environment = AlfworldEnvironment(games=folder, python=python)
    first, second = environment.tasks("seen", 2)
    assert first.env == "alfworld" and {first.id, second.id} == {f"valid_seen/game-{i}/trial_T2019" for i in (0, 1)}
    for quality in ("good", "clumsy"):
        assert environment.demonstrate(first, quality, seed=2).success
    actions = [m["content"] for m in environment.demonstrate(first).messages if m["role"] == "assistant"]
    assert all(a != b for a, b in pairwise(actions))
    session = environment.reset(first)
    assert environment.accepts(session, actions[0], actions[0])
    assert not environment.accepts(session, "look", actions[0])
    assert not environment.accepts(session, "xyz", actions[0])
    assert environment.accepts(session, actions[0], "inventory")  # the plan gets shorter
    with pytest.raises(ValueError, match=r"env\.games"):
        environment.tasks("seen", 3)
    with pytest.raises(ValueError, match=r"env\.games"):
        environment.tasks("train", 1)
    environment.close()
