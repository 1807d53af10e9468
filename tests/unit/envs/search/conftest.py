"""One tiny world of each kind for a whole session of tests."""

import pytest

from turnwise.envs.browse import BrowseEnv
from turnwise.envs.search import SearchEnv


@pytest.fixture(scope="session")
def world() -> SearchEnv:
    return SearchEnv("tiny", countries=10)


@pytest.fixture(scope="session")
def pages() -> BrowseEnv:
    return BrowseEnv("tiny", countries=10)
