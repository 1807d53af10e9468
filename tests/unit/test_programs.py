"""How the programs of scripts/ end if something cannot be used."""

from __future__ import annotations

import errno

import pytest

from turnwise.console import until_stopped
from turnwise.errors import InputError
from turnwise.programs import program

# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("a.yaml: no"), "a.yaml: no"),
        (OSError(errno.ENOSPC, "full", "out.svg"), "out.svg: no space left on this disk; free some space and run"),
        (
            PermissionError(errno.EACCES, "denied", "out.svg"),
            "out.svg: Permission denied; correct this, or name another",
        ),
        (OSError(errno.EINVAL, "not a regular file", "out.svg"), "out.svg: not a regular file"),
        (OSError("no such host"), "no such host"),
    ],
)
def test_an_error_of_a_user_is_one_line(error, said, capsys):
    @program()
    def main(arguments):
        raise error

    assert main(["x"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(said) and told.err.count("\n") == 1 and not told.out


def test_other_errors_are_bugs():
    @program()
    def main(arguments):
        raise KeyError("x")

    with pytest.raises(KeyError):
        main([])


def test_the_arguments_are_those_of_the_command_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["a.py", "b=1"])

    @program("Help.")
    def main(arguments):
        return len(arguments)

    assert main() == 1 and main(("b", "c")) == 2


# -- console -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyboardInterrupt

    assert until_stopped(main) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert until_stopped(lambda: 2) == 2
