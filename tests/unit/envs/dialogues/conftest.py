"""The worlds of dialogues, each with one format of calls; bfcl's are skipped where its package is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from turnwise_worlds.apibank import ApiBankEnv

NEEDS = "bfcl-eval is not installed; `make bfcl` does it"


def build(name):
    if name.startswith("bfcl"):
        if find_spec("bfcl_eval") is None:
            pytest.skip(NEEDS)
        from turnwise_worlds.bfcl import BfclEnv

        return BfclEnv(level="public") if name == "bfcl-public" else BfclEnv()
    return ApiBankEnv(format="hermes") if name == "apibank-hermes" else ApiBankEnv()


@pytest.fixture(scope="session", name="build")
def builder():
    """Name -> world."""
    return build


@pytest.fixture(scope="session", params=["bfcl-tiny", "bfcl-public", "apibank", "apibank-hermes"])
def world(request):
    return build(request.param)
