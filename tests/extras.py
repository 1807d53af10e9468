"""The extras that tests need: ``@pytest.mark.extra("mcp")`` marks a test of what `make mcp` installs.

Without the packages such a test is skipped, unless TURNWISE_REQUIRE_EXTRAS is 1: then it fails. `make test-extras` installs all
of them, sets the variable and runs the marked tests.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

# target of make -> what it brings that must be there; the second name tells a part of it that another extra brings from the whole
EXTRAS = {
    "agent": ("agents",),
    "gguf": ("gguf",),
    "lmeval": ("lm_eval",),
    "mcp": ("mcp",),
    "published": ("verifiers", "agents", "sophistry_bench"),
    "reasoning_gym": ("reasoning_gym",),
    "tau2": ("inspect_evals", "inspect_ai"),
    "verifiers": ("verifiers", "agents"),
}


def need(extra: str) -> None:
    """Skips or fails the running test where a package of the extra is missing."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if not missing:
        return
    told = f"{', '.join(missing)} not installed; `make {extra}` does it"
    if os.environ.get("TURNWISE_REQUIRE_EXTRAS") == "1":
        pytest.fail(told, pytrace=False)
    pytest.skip(told)
