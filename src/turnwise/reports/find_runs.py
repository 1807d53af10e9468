"""Finds finished runs on disk, and groups them into rows of runs that differ only in the seed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.errors import InputError
from turnwise.files import read_yaml
from turnwise.runs.archive import RunPath
from turnwise.runs.config_hash import recorded
from turnwise.runs.result_file import Result, ResultError, read_result


@dataclass(frozen=True, slots=True)
class RunRow:
    """The runs of one configuration, which differ only in the seed."""

    name: str
    results: dict[int, Result]  # seed -> result
    config: Mapping[str, object] = field(default_factory=dict)  # settings of the first seed, by dotted key
    folders: Mapping[int, Path] = field(default_factory=dict)  # seed -> folder of the run

    @property
    def seeds(self) -> list[int]:
        return sorted(self.results)

    @property
    def first(self) -> Result:
        return self.results[self.seeds[0]]

    def values(self, metric: str) -> dict[int, float]:
        """Returns seed -> number at the dotted path ``metric`` of ``result.json``, if the result has the number."""
        found = {seed: read_metric(self.results[seed], metric) for seed in self.seeds}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(slots=True)
class FinishedRuns:
    """All finished runs under some folders."""

    sections: dict[tuple[str, str], list[RunRow]] = field(default_factory=dict)  # (environment, scale) -> rows of runs
    notes: list[str] = field(default_factory=list)  # runs that were left out, with the reasons
    folders: list[Path] = field(default_factory=list)  # folders of the finished runs


def collect(paths: Iterable[Path | str]) -> FinishedRuns:
    """Finds every finished run under ``paths``, and groups runs of the same name into rows with one run per seed. A
    path is the folder of a run or contains folders of runs.

    Raises:
        InputError: a path is not a folder, or there is no finished run.
    """
    roots = [RunPath(path) for path in paths]
    collection, configs = FinishedRuns(), {}
    places: dict[tuple[str, str, str, int], Path] = {}
    newest: dict[tuple[str, str, str, int], float] = {}
    found: dict[tuple[str, str], dict[str, dict[int, Result]]] = {}
    for folder in sorted(set(_runs_below(roots))):
        if not (folder / "result.json").exists():
            collection.notes.append(f"{folder}: this run is not finished and is left out.")
            continue
        try:
            result = read_result(folder)
        except ResultError as error:
            collection.notes.append(f"left out: {error}")
            continue
        config = _config(folder / "config.yaml")
        name = result.name or str(config.get("name") or result.method)
        collection.folders.append(folder)
        key, written = (result.env, result.scale, name, result.seed), (folder / "result.json").stat().st_mtime
        if key in newest:
            used, left = (places[key], folder) if written < newest[key] else (folder, places[key])
            collection.notes.append(f"{name}, seed {result.seed}: {used} is used, because {left} is an older run.")
            if used != folder:
                continue
        newest[key] = written
        found.setdefault(key[:2], {}).setdefault(name, {})[result.seed] = result
        configs[key], places[key] = _decides(config), folder
    if not found:
        said = "\n".join(collection.notes)
        raise InputError(f"no finished run under {', '.join(map(str, roots))}; finish one with python train.py\n{said}")
    for section, rows in sorted(found.items()):
        collection.sections[section] = [
            RunRow(
                name,
                results,
                configs[*section, name, min(results)],
                {seed: places[*section, name, seed] for seed in results},
            )
            for name, results in sorted(rows.items())
        ]
        for row in collection.sections[section]:
            collection.notes += _drift(row, [configs[*section, row.name, seed] for seed in row.seeds])
    return collection


def read_metric(result: Result, metric: str) -> float | None:
    """Returns a number of a result by its dotted path, such as ``in_domain.after`` or ``ood.after.algebra``.

    The path ``seconds`` without the name of a phase gives the sum over all phases of the run. The paths ``ood.base``
    and ``ood.after`` without the name of an out-of-domain suite give the mean over all suites.

    Raises:
        InputError: ``metric`` is not the path of a number in ``result.json``.
    """
    node: Any = result
    for part in metric.split("."):
        if not isinstance(node, Mapping) and not hasattr(node, part):
            raise InputError(
                f"metric {metric!r}: result.json has no entry {part!r}; turnwise/runs/result_file.py lists the entries"
            )
        node = node.get(part) if isinstance(node, Mapping) else getattr(node, part)
        if node is None:
            return None
    if isinstance(node, Mapping):
        numbers = [float(value) for value in node.values()]
        return (sum(numbers) / (1 if metric == "seconds" else len(numbers))) if numbers else None
    if not isinstance(node, int | float):
        raise InputError(f"metric {metric!r}: this entry of result.json is not a number")
    return float(node)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = read_yaml(path)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _decides(config: dict[str, Any]) -> dict[str, object]:
    try:
        return recorded(OmegaConf.create(config))
    except OmegaConfBaseException:
        return {}


def _drift(row: RunRow, configs: list[dict[str, object]]) -> list[str]:
    """Returns a note if the seeds of a row differ in other settings, so that their mean would mix configurations. A
    setting that repeats the run's seed (``allocator.seed``) is no other setting, nor is the policy that the run of
    another row with the same seed has trained (``policy.start``).
    """
    keys = sorted({key for config in configs for key in config})
    said = {key: [_without_seed(config.get(key), seed) for config, seed in zip(configs, row.seeds)] for key in keys}
    repeats = {key for key in keys if all(config.get(key) == seed for config, seed in zip(configs, row.seeds))}
    odd = [key for key in keys if key not in repeats and any(value != said[key][0] for value in said[key])]
    return [f"{row.name}: its seeds differ in {', '.join(odd[:5])}, so their mean mixes settings."] if odd else []


def _without_seed(value: object, seed: int) -> object:
    return re.sub(rf"\bseed{seed}(?=/|$)", "seed*", value) if isinstance(value, str) else value


def folders_of(paths: Sequence[Path | str]) -> list[Path]:
    """Returns the run folders at or below ``paths``.

    Raises:
        InputError: a path is not a folder, or there is no run.
    """
    found = list(_runs_below(map(RunPath, paths)))
    if not found:
        raise InputError(f"no run under {', '.join(map(str, paths))}; give a folder that contains config.yaml")
    return found


def _runs_below(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if not root.is_dir():
            raise InputError(
                f"{root}: this folder does not exist; give folders of runs, or folders that contain them, e.g. "
                "outputs/pivotrl"
            )
        runs = {file.parent for name in ("config.yaml", "result.json") for file in root.rglob(name)}
        yield from sorted(run for run in runs if ".old-" not in run.name)
