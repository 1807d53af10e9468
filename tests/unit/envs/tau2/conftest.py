"""The three domains, skipped where the package is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDS = "inspect-evals is not installed; `make tau2` does it"


@pytest.fixture(scope="session")
def installed():
    """Skips what needs the package."""
    if find_spec("inspect_evals") is None or find_spec("inspect_ai") is None:
        pytest.skip(NEEDS)


@pytest.fixture(scope="session")
def world(installed):
    """Calls as ``f(a=1)``, which are short to write."""
    from turnwise.envs.tau2 import Tau2Env

    return Tau2Env(format="bfcl_python")


@pytest.fixture(scope="session")
def task():
    """(domain, name) -> the task."""
    from turnwise.types import Task

    return lambda domain, name: Task("tau2", f"{domain}/{name}", "train", {"domain": domain, "task": name})
