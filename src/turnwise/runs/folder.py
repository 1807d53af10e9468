"""One folder, one configuration: the same one resumes there, another one is refused, and nothing saved is lost."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from turnwise.config.schema import ConfigError
from turnwise.errors import Stopped
from turnwise.files import PART, no_room
from turnwise.runs.identity import config_hash, recorded
from turnwise.runs.record import RECORD, RESULT, differences, fault_of_result, read_record, write_record

logger = logging.getLogger(__name__)

_ENDED = ".ended_early"  # stands where a start came to its end without a checkpoint
_REMADE = {RECORD, _ENDED, "report.html", "status.json", "wandb", "engine"}  # what every start makes anew


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
    ``<folder>.old-<n>`` first, but not where Slurm starts a job of this run again: that goes on. A start that ends in any error
    before its first checkpoint gives the folder back to the corrected command: it is emptied where nothing of value lies in it;
    otherwise the same command goes on there, and another one puts it aside. A process that is killed changes nothing.
    Processes of one distributed run share the claim of their first rank.

    Raises:
        ConfigError: the folder cannot be written, holds a run of another configuration, or another process is running in it.
        Stopped: the folder was removed meanwhile.
    """
    path = Path(cfg.paths.out)
    if not is_first():
        yield RunFolder(path, config_hash(cfg), (path / RECORD).exists(), not _anew(cfg) and _has_result(path))
        return
    with _writable(path):
        path.mkdir(parents=True, exist_ok=True)
    with _only_one(path):
        with _writable(path):
            resumed = _taken(cfg, path)
        finished = _has_result(path)
        try:
            yield RunFolder(path, config_hash(cfg), resumed, finished)
            _refuse_removed(path)
        except BaseException as error:
            if not isinstance(error, Stopped):
                _refuse_removed(path, error)
            _give_back(path)
            raise


def _taken(cfg: DictConfig, path: Path) -> bool:
    """Make the folder this run's; whether it was already.

    Raises:
        ConfigError: it is another's.
    """
    if _anew(cfg) and os.path.lexists(path / RECORD):
        _put_aside(path)
    elif (path / _ENDED).exists() and os.path.lexists(path / RECORD) and _differing(cfg, path):
        aside = _put_aside(path)
        logger.warning(
            "%s had ended before its first checkpoint, with another configuration; it is now %s", path, aside
        )
    if (path / RESULT).exists() and not (path / RESULT).is_file():
        raise ConfigError([f"{path / RESULT} is no regular file, and the run's result belongs there; remove it"])
    resumed = os.path.lexists(path / RECORD)
    if resumed:
        _refuse_another(cfg, path)
        (path / _ENDED).unlink(missing_ok=True)
    elif (path / "checkpoints").exists():
        raise ConfigError(
            [f"{path} holds checkpoints and no {RECORD}, so nobody can tell of which run; remove it, or give name=..."]
        )
    else:
        write_record(cfg, path)
    for part in list(path.rglob(f".*{PART}")):
        shutil.rmtree(part) if part.is_dir() else part.unlink()  # a killed start was writing it
    return resumed


def _give_back(path: Path) -> None:
    """What an end without a checkpoint leaves: nothing, or a mark beside what is worth keeping."""
    with suppress(OSError):
        if (path / RESULT).exists() or any((path / "checkpoints").glob("*.ckpt")):
            return
        kept = [
            entry for entry in path.rglob("*") if not entry.is_dir() and entry.relative_to(path).parts[0] not in _REMADE
        ]
        if kept:
            (path / _ENDED).touch()
            return
        for entry in path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _refuse_removed(path: Path, error: BaseException | None = None) -> None:
    if not (path / RECORD).exists():
        raise Stopped(
            f"{path} was removed or replaced while the run wrote to it; what it held is gone, and the same command begins again"
        ) from error


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """An error of the file system in this block is a mistake in the run's name or place, unless the disk is full."""
    try:
        yield
    except OSError as error:
        if no_room(error, path) is not None:
            raise
        raise ConfigError(
            [f"paths.out={path}: cannot be written ({error.strerror or error}); name another place, or another name="]
        ) from error


def _anew(cfg: DictConfig) -> bool:
    """A requeued job comes with the command of its first start."""
    return bool(cfg.fresh) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"


def _has_result(path: Path) -> bool:
    """A result that cannot be read is made again: all that it says is still there."""
    fault = fault_of_result(path)
    if fault and is_first():
        logger.warning("%s is %s; it is written again", path / RESULT, fault)
    return fault is None


def _differing(cfg: DictConfig, path: Path) -> list[str]:
    return differences(read_record(path), recorded(cfg))


def _refuse_another(cfg: DictConfig, path: Path) -> None:
    differing = _differing(cfg, path)
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
        with _writable(path):
            if lock.exists() and not lock.is_file():
                raise OSError(errno.EINVAL, f"{lock.name} beside it is no regular file; remove it")
            stream = lock.open("w")
        with stream:
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


def _put_aside(path: Path) -> Path:
    n = 1
    while (aside := path.with_name(f"{path.name}.old-{n}")).exists():
        n += 1
    path.rename(aside)
    path.mkdir()
    return aside


def is_first() -> bool:
    """Whether this is the first process of its run, or the only one, as its launcher set it."""
    return not rank().strip("0.")


def rank() -> str:
    """This process's number in its run, or node and number there, as its launcher set it; 0 where it is alone."""
    for names in (("RANK",), ("NODE_RANK", "LOCAL_RANK"), ("SLURM_PROCID",)):
        if names[-1] in os.environ:
            return ".".join(os.environ.get(name, "0") for name in names)
    return "0"
