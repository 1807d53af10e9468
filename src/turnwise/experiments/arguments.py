"""Translates the command line of ``train.py sweep=...`` into a Hydra multirun over the rows of the sweep file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from turnwise.experiments.jobs import ask

_HELD = "hydra.sweeper.arguments=["


def for_hydra(arguments: Sequence[str], folder: Path) -> list[str]:
    """Returns the arguments to pass to Hydra: Hydra's own arguments unchanged, and all others packed into one argument
    of the sweeper.

    Overrides are packed so that they apply only to the runs of the rows. Before these runs, Hydra composes a
    configuration that belongs to no run. Unpacked overrides would apply to that configuration, and Hydra would refuse
    keys that only some methods have.

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
    """Returns the arguments that the user typed, given the result of :func:`for_hydra`. Hydra's own arguments come
    last.
    """
    held = next((a for a in arguments if a.startswith(_HELD)), None)
    if held is None:
        return list(arguments)
    own = [re.sub(r"\\(['$])", r"\1", part) for part in re.findall(r"'((?:\\.|[^'\\])*)'", held)]
    made = ("--multirun", "hydra/sweeper=", "hydra.sweeper.")
    return [*own, *(a for a in arguments if not a.startswith(made))]


def _quoted(text: str) -> str:
    """Returns a string quoted in Hydra's grammar. ``${...}`` in it is escaped, so that it is resolved only when the
    configuration of a row is composed.
    """
    escaped = text.replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"
