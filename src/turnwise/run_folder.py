"""One folder, one configuration: the same one resumes there, another one is refused, and nothing saved is lost."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.config import ConfigError
from turnwise.errors import InputError
from turnwise.files import PART, whole

logger = logging.getLogger(__name__)

_RECORD = "config.yaml"
# what names a run or shows it, and changes nothing that it computes
_SHOWN_ONLY = (
    "name",
    "fresh",
    "paths",
    "logger",
    "table",
    "judge.client",  # the same model may answer at another address
    "judge.cache",
    "engine.urls",  # and the same weights
    "engine.lanes",
    "rollout.world_threads",
    "rollout.spool",  # what a killed start leaves to the next one
    "engine.key_variable",
    "engine.patience",
    *(f"engine.local.{name}" for name in ("python", "servers", "devices", "rows", "kv_gb", "eager")),
    "update.max_skips",  # when a run gives up; one that goes on is the same
    "callbacks.progress",
    "callbacks.checkpoint.dirpath",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.enable_model_summary",
    "update.recompute",
    "update.offload",
    # where it runs: the processes of a run do together what one would do (docs/scaling.md)
    *(f"trainer.{name}" for name in ("devices", "num_nodes", "strategy")),
)
# keys that are younger than the first runs: with this value a run is the one that it was without them
_AS_BEFORE = {
    "rollout.staleness": 0,
    "states.refresh_window": 3,
    "states.refresh_gap": 6,
    "states.refresh_most": 4,
}
_ABSENT = "nothing"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run writes, and how far it had come. ``config_hash`` also names the run in its result."""

    path: Path
    config_hash: str
    resumed: bool  # a run of this very configuration was begun here
    finished: bool  # and it has a result that can be read


def config_hash(cfg: DictConfig) -> str:
    """Twelve hex digits of everything that decides what a run computes: not its name, its paths or its loggers."""
    text = json.dumps(_recorded(cfg), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextmanager
def claim(cfg: DictConfig) -> Iterator[RunFolder]:
    """The run's folder, held against other processes until the block ends.

    The first claim writes the resolved configuration there. ``fresh=true`` moves a run that lies there to
    ``<folder>.old-<n>`` first, but not where Slurm starts a job of this run again: that goes on. A run that ends in an
    :class:`InputError` before it has left anything gives the folder back, so that the corrected one may have it. Processes of
    one distributed run share the claim of their first rank.

    Raises:
        ConfigError: the folder holds a run of another configuration, or another process is running in it.
    """
    path = Path(cfg.paths.out)
    if not is_first():
        yield RunFolder(path, config_hash(cfg), (path / _RECORD).exists(), not _anew(cfg) and _has_result(path))
        return
    path.mkdir(parents=True, exist_ok=True)
    with _only_one(path):
        if _anew(cfg) and (path / _RECORD).exists():
            _put_aside(path)
        resumed = (path / _RECORD).exists()
        if resumed:
            _refuse_another(cfg, path)
        elif (path / "checkpoints").exists():
            raise ConfigError(
                [
                    f"{path} holds checkpoints and no {_RECORD}, so nobody can tell of which run; remove it, or give name=..."
                ]
            )
        else:
            with whole(path / _RECORD) as part:
                part.write_text(OmegaConf.to_yaml(cfg, resolve=True, sort_keys=False), encoding="utf-8")
        for part in list(path.rglob(f".*{PART}")):
            shutil.rmtree(part) if part.is_dir() else part.unlink()  # a killed start was writing it
        try:
            yield RunFolder(path, config_hash(cfg), resumed, _has_result(path))
        except InputError:
            if [entry.name for entry in path.iterdir()] == [_RECORD]:
                (path / _RECORD).unlink()
            raise


def _anew(cfg: DictConfig) -> bool:
    """A requeued job comes with the command of its first start."""
    return bool(cfg.fresh) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"


def _has_result(path: Path) -> bool:
    """A result that cannot be read is made again: all that it says is still there."""
    result = path / "result.json"
    try:
        return isinstance(json.loads(result.read_bytes()), dict)
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):
        if is_first():
            logger.warning("%s is damaged; it is written again", result)
        return False


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Keys whose values differ, as ``loss.clip_high: 0.2 there, 0.3 here``."""
    there, here = _flat(old), _flat(new)
    return [
        f"{key}: {there.get(key, _ABSENT)} there, {here.get(key, _ABSENT)} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, _ABSENT) != here.get(key, _ABSENT)
    ]


def _refuse_another(cfg: DictConfig, path: Path) -> None:
    there = OmegaConf.load(path / _RECORD)
    assert isinstance(there, DictConfig)
    differing = differences(_recorded(there), _recorded(cfg))
    if differing:
        lines = "\n".join(f"  - {line}" for line in differing)
        raise ConfigError(
            [
                f"{path} holds a run of another configuration:\n{lines}\n"
                "Give this run a folder of its own (name=...), or put the other one aside (fresh=true)"
            ]
        )


def _recorded(cfg: DictConfig) -> dict[str, Any]:
    """Leaves of what decides a run, by dotted key."""
    leaves = _flat(_record(cfg))
    return {key: value for key, value in leaves.items() if key not in _AS_BEFORE or value != _AS_BEFORE[key]}


def _record(cfg: DictConfig) -> dict[str, Any]:
    record = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(record, dict)
    for key in _SHOWN_ONLY:
        *parents, last = key.split(".")
        node: Any = record
        for parent in parents:
            node = (node or {}).get(parent)
        if isinstance(node, dict):
            node.pop(last, None)
    return {str(key): value for key, value in record.items()}


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key. An empty mapping and null are the same: a part that is not used."""
    if isinstance(node, Mapping):
        leaves: dict[str, Any] = {}
        for key, value in node.items():
            leaves.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
        return leaves
    return {} if node is None else {prefix: node}


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")  # beside the folder, for the folder may be put aside
    while True:
        with lock.open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a killed process lets go of it
            except BlockingIOError:
                raise ConfigError(
                    [f"{path}: another process is running there; wait for it, or give name=..."]
                ) from None
            # Only who holds the file under this name owns the folder, and only the owner takes the name away. Where the
            # last owner did so between our opening and locking it, another process may stand under the name by now.
            if not _stands_for(stream.fileno(), lock):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _stands_for(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _put_aside(path: Path) -> None:
    n = 1
    while (aside := path.with_name(f"{path.name}.old-{n}")).exists():
        n += 1
    path.rename(aside)
    path.mkdir()


def is_first() -> bool:
    """Whether this is the first process of its run, or the only one, as its launcher set it."""
    return not rank().strip("0.")


def rank() -> str:
    """This process's number in its run, or node and number there, as its launcher set it; 0 where it is alone."""
    for names in (("RANK",), ("NODE_RANK", "LOCAL_RANK"), ("SLURM_PROCID",)):
        if names[-1] in os.environ:
            return ".".join(os.environ.get(name, "0") for name in names)
    return "0"
