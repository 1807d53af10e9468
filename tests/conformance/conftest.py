"""Both engines for the conformance tests.

The real one is looked for in ``.venv-alfworld`` (`make alfworld`), in the interpreter that TURNWISE_ALFWORLD_PYTHON names,
or in this one. TURNWISE_ALFWORLD_GAMES sets how many games of each type and split are played (1).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance.alfworld_games import GeneratedAlfworld

from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.household.rooms import TYPES

OWN = Path(__file__).parents[2] / ".venv-alfworld" / "bin" / "python"
PYTHON = os.environ.get("TURNWISE_ALFWORLD_PYTHON", str(OWN) if OWN.exists() else sys.executable)
GAMES = int(os.environ.get("TURNWISE_ALFWORLD_GAMES", "1"))
HORIZON = 40


@pytest.fixture(scope="session")
def python():
    """The interpreter of the workers; without the engine in it there is nothing to compare."""
    try:
        found = subprocess.run([PYTHON, "-c", "import alfworld, textworld"], capture_output=True, check=False)
    except OSError:
        found = None
    if found is None or found.returncode:
        pytest.skip(f"{PYTHON} has no alfworld and textworld; 'make alfworld' installs them in .venv-alfworld")
    return PYTHON


@pytest.fixture(scope="session")
def real(python):
    environment = GeneratedAlfworld(horizon=HORIZON, python=python)
    yield environment
    environment.close()


@pytest.fixture(scope="session")
def ours():
    return HouseholdEnv(horizon=HORIZON)


@pytest.fixture(scope="session")
def games(ours):
    """``games(split)``: the chosen number of tasks of each of the six types."""

    def find(split):
        tasks, count = {kind: [] for kind in TYPES}, 16
        while any(len(found) < GAMES for found in tasks.values()):
            tasks = {kind: [] for kind in TYPES}
            for task in ours.tasks(split, count, seed=7):
                tasks[task.data["goal"]["type"]].append(task)
            count *= 2
        return [task for found in tasks.values() for task in found[:GAMES]]

    return find
