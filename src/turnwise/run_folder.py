"""One folder, one configuration: the same one resumes there, another one is refused, and nothing saved is lost."""

from __future__ import annotations

import fcntl
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
from turnwise.identity import config_hash, flat, recorded

logger = logging.getLogger(__name__)

_RECORD = "config.yaml"
_SHOWS = {"status.json", "report.html"}  # what a run that is refused has already written of its beginning
_ABSENT = "nothing"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run writes, and how far it had come. ``config_hash`` also names the run in its result."""

    path: Path
    config_hash: str
    resumed: bool  # a run of this very configuration was begun here
    finished: bool  # and it has a result that can be read


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
            left = [entry.name for entry in path.iterdir()]
            if set(left) - _SHOWS == {_RECORD}:
                for name in left:
                    (path / name).unlink()
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
    there, here = flat(old), flat(new)
    return [
        f"{key}: {there.get(key, _ABSENT)} there, {here.get(key, _ABSENT)} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, _ABSENT) != here.get(key, _ABSENT)
    ]


def _refuse_another(cfg: DictConfig, path: Path) -> None:
    there = OmegaConf.load(path / _RECORD)
    assert isinstance(there, DictConfig)
    differing = differences(recorded(there), recorded(cfg))
    if differing:
        lines = "\n".join(f"  - {line}" for line in differing)
        raise ConfigError(
            [
                f"{path} holds a run of another configuration:\n{lines}\n"
                "Give this run a folder of its own (name=...), or put the other one aside (fresh=true)"
            ]
        )


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
