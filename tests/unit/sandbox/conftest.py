"""The real sandbox, under limits that a shared machine does not feel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from turnwise_worlds.sandbox.sandbox import Bubblewrap, Limits, NoSandboxError, open_sandbox

# A test that waits for the end of a call has time for it on a busy machine; one that waits for the limit has not.
PATIENT = Limits(seconds=20, memory_mib=160, processes=16, file_mib=2, folder_mib=4, files=100, output_kib=16)


def sandbox_with(limits: Limits) -> Bubblewrap:
    try:
        return open_sandbox(limits)
    except NoSandboxError as error:
        pytest.skip(str(error))


def _opened(limits: Limits) -> Iterator[Bubblewrap]:
    sandbox = sandbox_with(limits)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    yield from _opened(PATIENT)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Bubblewrap]:
    yield from _opened(replace(PATIENT, seconds=1.0))
