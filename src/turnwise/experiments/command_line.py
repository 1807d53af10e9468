"""Parses the command line of ``train.py sweep=...``, and translates it into a Hydra multirun over the sweep's rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from turnwise.errors import InputError, refuse_twice
from turnwise.experiments.claims import Scale
from turnwise.experiments.sweep_file import Sweep, find_sweep

_HELD = "hydra.sweeper.arguments=["


def for_hydra(arguments: Sequence[str], folder: Path) -> list[str]:
    """Returns the arguments to pass to Hydra for a sweep: Hydra's own arguments unchanged, and all other arguments
    packed into one argument of the sweeper.

    Packed overrides apply only to the runs of the sweep's rows. Before these runs, Hydra composes a configuration that
    belongs to no run. Hydra would apply unpacked overrides to that configuration, and refuse keys that only some
    methods have.

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
    """Returns the arguments that the user typed, from the result of :func:`for_hydra`, with Hydra's own ones last."""
    held = next((a for a in arguments if a.startswith(_HELD)), None)
    if held is None:
        return list(arguments)
    own = [re.sub(r"\\(['$])", r"\1", part) for part in re.findall(r"'((?:\\.|[^'\\])*)'", held)]
    made = ("--multirun", "hydra/sweeper=", "hydra.sweeper.")
    return [*own, *(a for a in arguments if not a.startswith(made))]


def _quoted(text: str) -> str:
    """Quotes ``text`` for Hydra's grammar. ``${...}`` is escaped, so that it is resolved for each row."""
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
            raise InputError(f"{argument}: a sweep sets the names and folders of its runs; leave out this argument")
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


@dataclass(frozen=True, slots=True)
class Asked:
    """The parsed command line of a sweep."""

    sweep: Sweep
    folder: Path  # conf/
    scale: Scale = "tiny"
    rows: tuple[str, ...] | None = None  # None: all rows
    seeds: tuple[int, ...] | None = None  # None: the sweep's seeds
    extra: tuple[str, ...] = ()  # overrides, which every row gets that accepts them
    dry: bool = False
    pilot: tuple[str, ...] = ()  # overrides of pilot runs; not empty if pilot runs are requested (:func:`of_pilots`)

    @property
    def fresh(self) -> bool:
        return "fresh=true" in (item.lower() for item in self.extra)


def played(asked: Asked) -> Asked:
    """Returns the request for the runs that a sweep shows: its own runs, or those of the sweep in ``gate_report``."""
    source = asked.sweep.gate_report
    return (
        asked
        if source in (None, asked.sweep.name)
        else replace(asked, sweep=find_sweep(source, asked.folder), rows=None)
    )


def of_pilots(asked: Asked) -> Asked:
    """Returns the request for the pilot runs of a sweep: runs with the pilot seeds of the rows that preconditions name,
    and of the rows from whose weights these runs start.

    The names of pilot runs begin with ``pilot/``. Pilot runs use the tasks of ``eval.seed=0``, because settings may be
    chosen by looking at their results.

    Raises:
        InputError: the sweep has no pilot runs.
    """
    sweep = asked.sweep
    rows = [
        one.row for one in sweep.preconditions.values() if one.same is None and one.row in (asked.rows or sweep.rows)
    ]
    if sweep.pilots is None or not rows:
        shared = sorted({one.same.partition("/")[0] for one in sweep.preconditions.values() if one.same})
        told = (
            f"its preconditions are measured by the pilot runs of {', '.join(shared)}"
            if shared
            else "the sweep measures no precondition on these rows"
        )
        raise InputError(f"pilots=true: {sweep.name} has no pilot runs of its own: {told}")
    if sweep.start_seed is None:
        for row in rows:  # the list grows in the loop, because the row that is added may itself start from another row
            begins = sweep.rows[row].begins(asked.scale)
            rows += [begins] if begins is not None and begins not in rows else []
    return replace(
        asked,
        rows=tuple(dict.fromkeys(reversed(rows))),
        seeds=sweep.pilots.seeds,
        pilot=(*sweep.pilots.overrides, "eval.seed=0"),
    )


def picked(asked: Asked) -> tuple[str, ...]:
    """Returns the names of the requested rows of a sweep.

    Raises:
        InputError: a row is unknown; the message names the most similar row.
    """
    sweep = asked.sweep
    rows = asked.rows or tuple(sweep.rows)
    for row in rows:
        if row not in sweep.rows:
            near = get_close_matches(row, sweep.rows, n=1, cutoff=0.6)
            told = f"did you mean {near[0]!r}?" if near else f"the rows are {', '.join(sweep.rows)}"
            raise InputError(f"rows={row}: {sweep.name} has no row {row!r}; {told}")
    return rows


def seeds_of(text: str) -> tuple[int, ...]:
    """Parses seeds such as ``0,1,2``.

    Raises:
        InputError: the text is not a comma-separated list of whole numbers of at least 0.
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"seed={text}: give a comma-separated list of whole numbers") from None
    if min(seeds) < 0:
        raise InputError(f"seed={text}: a seed must be at least 0, got {min(seeds)}")
    return seeds
