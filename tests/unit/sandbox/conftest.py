"""The real back ends, under limits that a shared machine does not feel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from turnwise.sandbox.base import Limits, NoSandboxError, Sandbox
from turnwise.sandbox.detect import open_sandbox

# A test that waits for the end of a call has time for it on a busy machine; one that waits for the limit has not.
PATIENT = Limits(seconds=20, memory_mib=160, processes=16, file_mib=2, folder_mib=4, files=100, output_kib=16)
SECONDS = {"bubblewrap": 1.0, "sandlock": 2.0}  # a snippet under sandlock starts an interpreter first


def _opened(backend: str, limits: Limits) -> Iterator[Sandbox]:
    try:
        sandbox = open_sandbox(backend, limits)  # type: ignore[arg-type]
    except NoSandboxError as error:
        pytest.skip(str(error))
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module", params=["bubblewrap", pytest.param("sandlock", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def sandbox(backend: str) -> Iterator[Sandbox]:
    yield from _opened(backend, PATIENT)


@pytest.fixture(scope="module")
def hasty(backend: str) -> Iterator[Sandbox]:
    yield from _opened(backend, replace(PATIENT, seconds=SECONDS[backend]))
