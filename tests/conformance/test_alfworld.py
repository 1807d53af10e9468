"""Household against the real ALFWorld engine: same games, same actions, same answers.

Runs where ``requirements-alfworld.txt`` is installed: in ``.venv-alfworld`` (`make alfworld`), in the interpreter that
TURNWISE_ALFWORLD_PYTHON names, or in this one. TURNWISE_ALFWORLD_GAMES sets how many games of each type and split are played (1).
"""

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

from turnwise.envs.alfworld import AlfworldEnvironment
from turnwise.envs.alfworld.client import Pool
from turnwise.envs.alfworld.game import problem
from turnwise.envs.alfworld.generated import scene
from turnwise.envs.base import Environment, EnvironmentFault
from turnwise.envs.household import HouseholdEnv
from turnwise.envs.household.rooms import TYPES
from turnwise.types import Task

OWN = Path(__file__).parents[2] / ".venv-alfworld" / "bin" / "python"
PYTHON = os.environ.get("TURNWISE_ALFWORLD_PYTHON", str(OWN) if OWN.exists() else sys.executable)
GAMES = int(os.environ.get("TURNWISE_ALFWORLD_GAMES", "1"))
HORIZON = 40
NONSENSE = (
    "",
    "   ",
    "LOOK",
    "look around",
    "  look  ",
    "go to the fridge 1",
    "go to nowhere 1",
    "take apple from fridge",
    "put mug 1 in/on desk 1",
    "use lamp",
    "examine",
    "go to bed 1\nlook",
    "\u00e9\U0001f600",
)
FORMS = (
    "take {} from {}",
    "move {} to {}",
    "heat {} with {}",
    "cool {} with {}",
    "clean {} with {}",
    "slice {} with {}",
    "use {}",
    "examine {}",
    "open {}",
    "close {}",
    "go to {}",
)


def installed() -> bool:
    """Whether the workers' interpreter is there and has the engine."""
    try:
        command = [PYTHON, "-c", "import alfworld, textworld"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.alfworld,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not installed(),
        reason=f"{PYTHON} has no alfworld and textworld; 'make alfworld' installs them in .venv-alfworld",
    ),
]


@pytest.fixture(scope="module")
def real():
    environment = AlfworldEnvironment(horizon=HORIZON, python=PYTHON)
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def ours():
    return HouseholdEnv(horizon=HORIZON)


def path():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def games(household, split):
    """``GAMES`` tasks of each of the six types."""
    tasks, count = {kind: [] for kind in TYPES}, 16
    while any(len(found) < GAMES for found in tasks.values()):
        tasks = {kind: [] for kind in TYPES}
        for task in household.tasks(split, count, seed=7):
            tasks[task.data["goal"]["type"]].append(task)
        count *= 2
    return [task for found in tasks.values() for task in found[:GAMES]]


def compare(household, real, task, choose):
    """Play the same actions in both engines; ``choose`` sees household's session. The number of steps compared."""
    a, b = household.reset(task), real.reset(replace(task, env="alfworld"))
    history = []
    assert b.opening() == a.opening(), task.id
    assert (b.done, b.won) == (a.done, a.won), task.id
    while not a.done:
        assert b.admissible() == a.admissible(), (task.id, history)
        action = choose(a)
        history.append(action)
        ours, theirs = a.step(action), b.step(action)
        assert theirs == ours, (task.id, history)
    assert b.done, (task.id, history)
    return len(history)


def wanderer(seed, task):
    """Mostly admissible actions, few walks to nowhere new; also commands of other places, and nonsense."""
    rng = random.Random(seed)
    names = [*task.data["objects"], *task.data["receptacles"]]

    def choose(session):
        draw = rng.random()
        if draw < 0.1:
            return rng.choice(NONSENSE)
        if draw < 0.25:
            a, b = rng.choice(names), rng.choice(names)
            return rng.choice(FORMS).format(a, b)
        commands = session.admissible()
        handling = [c for c in commands if not c.startswith(("go to", "look", "help", "inventory", "examine"))]
        return rng.choice(handling if handling and draw < 0.75 else commands)

    return choose


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_expert_episodes_agree(ours, real, split):
    steps = 0
    for task in games(ours, split):
        for quality in ("good", "clumsy"):
            shown = ours.demonstrate(task, quality, seed=3)
            actions = iter([message["content"] for message in shown.messages if message["role"] == "assistant"])
            steps += compare(ours, real, task, lambda _, actions=actions: next(actions))
            played = real.demonstrate(replace(task, env="alfworld"), quality, seed=3)
            assert played.messages == shown.messages
            assert played.success == shown.success
    assert steps > 6 * GAMES


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_random_episodes_agree(ours, real, split):
    steps = sum(compare(ours, real, task, wanderer(task.id, task)) for task in games(ours, split))
    assert steps > 6 * GAMES


TOUR = {
    "receptacles": ["cabinet 1", "cabinet 2", "countertop 1", "desk 1", "fridge 1", "microwave 1", "sinkbasin 1"],
    "objects": {
        "book 1": "desk 1",
        "desklamp 1": "desk 1",
        "knife 1": "countertop 1",
        "mug 1": "desk 1",
        "mug 2": "cabinet 2",
        "potato 1": "countertop 1",
        "potato 2": "countertop 1",
        "potato 3": "countertop 1",
        "tomato 1": "fridge 1",
    },
    "goal": {"type": "pick_two_obj_and_place", "object": "mug", "receptacle": "cabinet", "toggle": None},
    "text": "put two mug in cabinet",
}


@pytest.mark.parametrize(
    ("tour", "last"),
    [
        (
            "look; inventory; help; examine desk 1; go to desk 1; go to desk 1; use desklamp 1; use desklamp 1; look; "
            "examine desklamp 1; examine book 1; take desklamp 1 from desk 1; take book 1 from desk 1; examine book 1; "
            "use desklamp 1; take mug 1 from desk 1; inventory; move book 1 to desk 1; examine desk 1",
            "On the desk 1, you see a book 1, a desklamp 1, and a mug 1.",
        ),
        (
            "go to desk 1; take mug 1 from desk 1; examine mug 1; go to microwave 1; heat mug 1 with microwave 1; "
            "examine mug 1; go to cabinet 1; move mug 1 to cabinet 1; open cabinet 1; open cabinet 1; "
            "move mug 1 to cabinet 1; close cabinet 1; take mug 1 from cabinet 1; go to cabinet 2; open cabinet 2; "
            "take mug 2 from cabinet 2; go to cabinet 1; move mug 2 to cabinet 1; open cabinet 1; move mug 2 to cabinet 1",
            "You move the mug 2 to the cabinet 1.",
        ),
        (
            "go to countertop 1; take potato 1 from countertop 1; examine potato 1; go to fridge 1; "
            "cool potato 1 with fridge 1; examine potato 1; go to sinkbasin 1; clean potato 1 with sinkbasin 1; "
            "examine potato 1; go to microwave 1; heat potato 1 with microwave 1; examine potato 1; "
            "open microwave 1; move potato 1 to microwave 1; go to countertop 1; take potato 2 from countertop 1; "
            "go to microwave 1; heat potato 2 with microwave 1; examine potato 2; move potato 2 to microwave 1; "
            "examine microwave 1; close microwave 1; look; go to countertop 1; take potato 3 from countertop 1; "
            "go to sinkbasin 1; clean potato 3 with sinkbasin 1; examine potato 3",
            "This is a clean potato 3.",
        ),
        (
            "go to countertop 1; slice potato 1 with knife 1; take knife 1 from countertop 1; "
            "slice potato 1 with knife 1; slice potato 1 with knife 1; slice potato 2 with knife 1; go to fridge 1; "
            "slice tomato 1 with knife 1; open fridge 1; go to countertop 1; move knife 1 to countertop 1; "
            "take potato 1 from countertop 1; examine potato 1; go to fridge 1; cool potato 1 with fridge 1; "
            "examine potato 1; go to sinkbasin 1; clean potato 1 with sinkbasin 1; examine potato 1; "
            "go to microwave 1; heat potato 1 with microwave 1; examine potato 1; go to countertop 1; "
            "move potato 1 to countertop 1; take potato 2 from countertop 1; go to microwave 1; "
            "heat potato 2 with microwave 1; examine potato 2; go to sinkbasin 1; move potato 2 to sinkbasin 1; "
            "go to fridge 1; take tomato 1 from fridge 1; go to sinkbasin 1; clean tomato 1 with sinkbasin 1; "
            "examine tomato 1",
            "This is a clean sliced tomato 1.",
        ),
    ],
    ids=["lamp", "doors", "treatments", "slices"],
)
def test_rare_rules_agree(ours, real, tour, last):
    """What random play seldom meets: second uses, closed doors, every description of a treated thing."""
    task = Task(env="household", id="tour", split="train", data=TOUR)
    session = ours.replay(task, tour.split("; ")[:-1])
    assert session.step(tour.rsplit("; ", 1)[1]).observation == last
    actions = iter(tour.split("; "))
    compare(ours, real, task, lambda _: next(actions, "look"))


def test_expert_ends_with_the_goal_in_both(ours, real):
    for task in games(ours, "train"):
        shown = real.demonstrate(replace(task, env="alfworld"))
        assert shown.success
        session = real.reset(shown.task)
        answers = [session.step(m["content"]) for m in shown.messages if m["role"] == "assistant"]
        assert [answer.reward for answer in answers] == [0.0] * (len(answers) - 1) + [1.0]
        with pytest.raises(RuntimeError, match="over"):
            session.step("look")


def test_fork_leaves_its_parent_alone_and_goes_on_like_it(ours, real):
    task = replace(games(ours, "train")[3], env="alfworld")
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


def test_speed_up_changes_no_text(ours):
    task = games(ours, "unseen")[1]
    built = scene(task.data)
    game = {"problem": problem(built), "sentence": built.sentence}
    transcripts = []
    for slow in (False, True):
        pool, rng = Pool(python=PYTHON, slow=slow), random.Random(5)
        worker = pool.worker()
        transcript = [worker.call(op="open", game=game)]
        for _ in range(25):
            at = transcript[-1]["id"]
            action = rng.choice([c for c in transcript[-1]["admissible"] if "go to" not in c or rng.random() < 0.3])
            transcript.append(worker.call(op="step", at=at, action=action))
        transcripts.append(transcript)
        pool.close()
    assert transcripts[0] == transcripts[1]


def test_verifier_is_the_households(ours, real):
    task = games(ours, "train")[0]
    there = real.reset(replace(task, env="alfworld"))
    here = ours.reset(task)
    expert = next(m["content"] for m in ours.demonstrate(task).messages if m["role"] == "assistant")
    verdicts = {action: ours.accepts(here, action, expert) for action in here.admissible()}
    assert {action: real.accepts(there, action, expert) for action in verdicts} == verdicts
    assert set(verdicts.values()) == {True, False}
    assert there.actions == ()


def test_is_an_environment(real):
    assert isinstance(real, Environment)
    assert real.same(" go  to desk 1 ", "go to desk 1") and not real.same("go to desk 2", "go to desk 1")


def test_dead_worker_is_a_fault_and_the_next_episode_lives(ours):
    environment = AlfworldEnvironment(python=PYTHON)
    task = environment.tasks("train", 1)[0]
    session = environment.reset(task)
    os.kill(session._worker.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="died"):
        session.step("look")
    with pytest.raises(EnvironmentFault, match="died"):
        session.fork()
    assert environment.reset(task).step("look").observation
    environment.close()


def test_worker_ends_with_its_parent(ours):
    code = (
        "import os, sys; from turnwise.envs.alfworld.client import Pool; "
        "print(Pool(python=sys.argv[1]).worker().pid, flush=True); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code, PYTHON], capture_output=True, text=True, env=path(), check=False
    )
    status, deadline = Path(f"/proc/{int(parent.stdout)}/stat"), time.monotonic() + 20
    while status.exists() and ") Z " not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or ") Z " in status.read_text()


def test_silent_worker_is_a_fault(ours):
    environment = AlfworldEnvironment(python=PYTHON, timeout=0.5)
    task = environment.tasks("train", 1)[0]
    worker = environment.pool.worker()
    worker.timeout = 30.0
    session = environment.reset(task)
    worker.timeout = 0.5
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(EnvironmentFault, match=r"no answer within 0\.5 s"):
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
def folder(tmp_path, ours):
    """A data folder as ``alfworld-download`` leaves it, with generated games in it."""
    found = subprocess.run(
        [PYTHON, "-c", "import importlib.util as u; print(u.find_spec('alfworld').submodule_search_locations[0])"],
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


def test_official_games(folder):
    environment = AlfworldEnvironment(games=folder, python=PYTHON)
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
    with pytest.raises(ValueError, match="2 playable games, 3 were asked for"):
        environment.tasks("seen", 3)
    with pytest.raises(ValueError, match="0 playable games"):
        environment.tasks("train", 1)
    environment.close()
