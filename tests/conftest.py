"""Settings of all tests."""

import pytest
from hypothesis import settings
from tests.extras import need

# The same examples in every run, so that a failure is of the change that shows it; `make properties` looks for new ones.
# A wall-clock limit per example fails on a busy machine and says nothing of the property.
settings.register_profile("turnwise", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("turnwise")

SLOW = 3600  # s; what stops a slow test that hangs. How long one works is a matter of what else the machine does


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have a limit of their own in place of that in pyproject.toml, where they name none."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: are the packages there that the test is marked to need?"""
    for mark in item.iter_markers("extra"):
        need(*mark.args)
