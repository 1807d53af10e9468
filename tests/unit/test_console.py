"""Ctrl-C in a script is one line and the exit status of a signal."""

from __future__ import annotations

import pytest

from turnwise.console import until_stopped


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyboardInterrupt

    assert until_stopped(main) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert until_stopped(lambda: 2) == 2
