"""One tiny world of each kind for a whole session of tests."""

import pytest

from turnwise_worlds.browse import BrowseEnv
from turnwise_worlds.search import SearchEnv


@pytest.fixture(scope="session")
def world() -> SearchEnv:
    return SearchEnv("tiny", countries=10)


@pytest.fixture(scope="session")
def pages() -> BrowseEnv:
    return BrowseEnv("tiny", countries=10)
