"""The command line of ``train.py sweep=...`` as Hydra's: a multirun whose sweeper is the rows of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from turnwise.experiments.jobs import ask

_HELD = "hydra.sweeper.arguments=["


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for a sweep."""
    return any(argument.startswith("sweep=") for argument in arguments)


def for_hydra(arguments: Sequence[str], folder: Path) -> list[str]:
    """What Hydra is to be told: its own arguments as they are, all others as the sweeper's.

    Overrides go to the rows alone: the configuration that Hydra composes first is nobody's run, and would refuse a key that
    only some method has.

    Raises:
        InputError: the sweep, a row or an argument cannot be used.
    """
    hydras = [a for a in arguments if a.startswith(("hydra/", "hydra.", "-")) and a != "--dry-run"]
    own = [a for a in arguments if a not in hydras]
    ask(own, folder)
    return [
        "--multirun",
        *(a for a in hydras if a not in ("-m", "--multirun")),
        "hydra/sweeper=rows",
        f"{_HELD}{','.join(map(_quoted, own))}]",
        f"hydra.sweeper.folder={_quoted(str(folder))}",
    ]


def typed(arguments: Sequence[str]) -> list[str]:
    """A command line as it was typed: what :func:`for_hydra` was given, Hydra's own arguments last; any other as it is."""
    held = next((a for a in arguments if a.startswith(_HELD)), None)
    if held is None:
        return list(arguments)
    own = [re.sub(r"\\(['$])", r"\1", part) for part in re.findall(r"'((?:\\.|[^'\\])*)'", held)]
    made = ("--multirun", "hydra/sweeper=", "hydra.sweeper.")
    return [*own, *(a for a in arguments if not a.startswith(made))]


def _quoted(text: str) -> str:
    """A string in Hydra's grammar; ``${`` stays as it is until a row is composed."""
    escaped = text.replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"
