"""Worlds whose commands run in a sandbox."""

from __future__ import annotations

import pytest

from turnwise_worlds.sandbox.sandbox import Limits, NoSandboxError, open_sandbox
from turnwise_worlds.workspace import Box


@pytest.fixture(scope="session")
def box() -> Box:
    """A sandbox under low limits, with time enough for a busy machine."""
    try:
        open_sandbox().close()
    except NoSandboxError as error:
        pytest.skip(str(error))
    return Box(
        limits=Limits(seconds=15, memory_mib=128, processes=12, file_mib=1, folder_mib=2, files=100, output_kib=16)
    )
