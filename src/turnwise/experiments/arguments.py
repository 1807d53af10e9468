"""Parses the command line of ``train.py sweep=...``, and translates it into a Hydra multirun over the rows of the sweep
file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from turnwise.errors import InputError, refuse_twice
from turnwise.experiments.jobs import Asked, of_pilots, seeds_of
from turnwise.experiments.sweep_file import find_sweep

_HELD = "hydra.sweeper.arguments=["


def for_hydra(arguments: Sequence[str], folder: Path) -> list[str]:
    """Returns the arguments to pass to Hydra for a sweep: Hydra's own arguments unchanged, and all other arguments
    packed into one argument of the sweeper.

    Overrides are packed so that they apply only to the runs of the sweep's rows. Before these runs, Hydra composes a
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
    """Returns the arguments that the user typed, from the arguments that :func:`for_hydra` returned. Hydra's own
    arguments come last.
    """
    held = next((a for a in arguments if a.startswith(_HELD)), None)
    if held is None:
        return list(arguments)
    own = [re.sub(r"\\(['$])", r"\1", part) for part in re.findall(r"'((?:\\.|[^'\\])*)'", held)]
    made = ("--multirun", "hydra/sweeper=", "hydra.sweeper.")
    return [*own, *(a for a in arguments if not a.startswith(made))]


def _quoted(text: str) -> str:
    """Returns ``text`` as a quoted string of Hydra's grammar. ``${...}`` in the text is escaped, so that it is resolved
    only when the configuration of a row is composed.
    """
    escaped = text.replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"


def ask(arguments: Sequence[str], folder: Path) -> Asked:
    """Parses ``sweep=NAME [scale=tiny|paper] [rows=a,b] [seed=0,1] [pilots=true] [--dry-run] [key=value ...]``.

    Raises:
        InputError: an argument cannot be used with a sweep, or is given twice.
    """
    refuse_twice(arguments)
    given: dict[str, str] = {}
    extra, dry = [], False
    for argument in arguments:
        key, sign, value = argument.partition("=")
        if argument == "--dry-run":
            dry = True
        elif key in ("sweep", "scale", "rows", "seed", "pilots"):
            given[key] = value
        elif not sign and not key.startswith("~"):
            raise InputError(f"{argument}: this argument is not of the form key=value")
        elif key in ("name", "paths.out"):
            raise InputError(
                f"{argument}: the rows of a sweep have names and folders of their own; leave out this argument"
            )
        elif re.search(r"^(choice|range|interval|glob)\(|^[^\[{'\"(]*,", value):
            raise InputError(
                f"{argument}: a sweep takes one value for each key; give one value, or use `train.py -m` without sweep="
            )
        else:
            extra.append(argument)
    scale = given.get("scale", "tiny")
    if scale not in ("tiny", "paper"):
        raise InputError(f"scale={scale}: the scale of a sweep must be tiny or paper")
    pilots = given.get("pilots", "false").lower()
    if pilots not in ("true", "false") or (pilots == "true" and "seed" in given):
        raise InputError(
            f"pilots={pilots}: give true or false; with true, leave out seed=, because the sweep file sets the seeds"
        )
    asked = Asked(
        find_sweep(given.get("sweep", ""), folder).of_scale(scale),  # type: ignore[arg-type]
        folder,
        scale,  # type: ignore[arg-type]
        tuple(given["rows"].split(",")) if given.get("rows") else None,
        seeds_of(given["seed"]) if "seed" in given else None,
        tuple(extra),
        dry,
    )
    return of_pilots(asked) if pilots == "true" else asked
