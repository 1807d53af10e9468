"""The three domains."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def world():
    """Calls as ``f(a=1)``, which are short to write."""
    from turnwise_worlds.tau2 import Tau2Env

    return Tau2Env(format="bfcl_python")


@pytest.fixture(scope="session")
def task():
    """(domain, name) -> the task."""
    from turnwise.types import Task

    return lambda domain, name: Task("tau2", f"{domain}/{name}", "train", {"domain": domain, "task": name})
