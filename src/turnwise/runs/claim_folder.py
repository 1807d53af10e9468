"""Locks the output folder of a run and decides whether the run starts there, resumes or is refused.

If the folder holds a run of the same configuration, that run resumes. If it holds a run of another configuration, the
new run is refused. No saved file is lost.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import ConfigError
from turnwise.errors import Stopped
from turnwise.files import PART, no_room
from turnwise.runs.config_file import RECORD, differences, read_record, write_record
from turnwise.runs.config_hash import recorded
from turnwise.runs.process_rank import is_first

logger = logging.getLogger(__name__)

RESULT = "result.json"
_OF_A_RESULT = {"method", "env", "scale", "seed", "in_domain"}  # keys of every result (runs/result_file.py)
_ENDED = ".ended_early"  # empty file that marks a folder whose run ended before its first checkpoint
_REMADE = {RECORD, _ENDED, "report.html", "status.json", "wandb", "engine"}  # files and folders made at every start


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder that a run writes to."""

    path: Path
    resumed: bool  # whether a run of this configuration was started in this folder before
    finished: bool  # whether the folder has a readable result


@contextmanager
def claim(cfg: DictConfig) -> Iterator[RunFolder]:
    """Yields the run's folder, locked against other processes until the ``with`` block ends.

    The first claim writes the resolved configuration to the folder. With ``fresh=true``, the folder of an existing run
    is first renamed to ``<folder>.old-<n>``. If Slurm requeued the job, the folder keeps its name and the run resumes.

    If the block fails before the run's first checkpoint, the folder is emptied, so that a corrected command can use it.
    A folder with files that a run does not write again at every start is not emptied, but gets the empty file
    ``.ended_early``. After that, the same command resumes the run, and a command with another configuration renames the
    folder and uses a new one. If the process is killed, the folder stays as it is. In a distributed run, only the first
    rank locks the folder.

    Raises:
        ConfigError: the folder cannot be written, holds a run of another configuration, or is locked by another
            process.
        Stopped: the folder was removed during the run.
    """
    path = Path(cfg.paths.out)
    if not is_first():
        yield RunFolder(path, (path / RECORD).exists(), not _anew(cfg) and _has_result(path))
        return
    with _writable(path):
        path.mkdir(parents=True, exist_ok=True)
    with _only_one(path):
        with _writable(path):
            resumed = _taken(cfg, path)
        finished = _has_result(path)
        try:
            yield RunFolder(path, resumed, finished)
            _refuse_removed(path)
        except BaseException as error:
            if not isinstance(error, Stopped):
                _refuse_removed(path, error)
            _give_back(path)
            raise


def _taken(cfg: DictConfig, path: Path) -> bool:
    """Prepares the folder, and returns whether a run of this configuration was started there before.

    Raises:
        ConfigError: the folder holds a run of another configuration, or files that cannot be used.
    """
    if _anew(cfg) and os.path.lexists(path / RECORD):
        _put_aside(path)
    elif (path / _ENDED).exists() and os.path.lexists(path / RECORD) and _differing(cfg, path):
        aside = _put_aside(path)
        logger.warning(
            "%s: a run with another configuration ended here before its first checkpoint; the folder was renamed to %s",
            path,
            aside,
        )
    if (path / RESULT).exists() and not (path / RESULT).is_file():
        raise ConfigError([f"{path / RESULT} is not a regular file, but the run's result belongs there; remove it"])
    resumed = os.path.lexists(path / RECORD)
    if resumed:
        _refuse_another(cfg, path)
        (path / _ENDED).unlink(missing_ok=True)
    elif (path / "checkpoints").exists():
        raise ConfigError(
            [
                f"{path} contains checkpoints but no {RECORD}, so nobody can tell which run wrote them; remove the "
                "folder, or choose another name=..."
            ]
        )
    else:
        write_record(cfg, path)
    for part in list(path.rglob(f".*{PART}")):
        shutil.rmtree(part) if part.is_dir() else part.unlink()  # unfinished files left by a killed process
    return resumed


def _give_back(path: Path) -> None:
    """Empties the folder of a run that ended without a checkpoint. If the folder has files that are not written again
    at every start, it only gets the empty file ``.ended_early``.
    """
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
            f"{path} was removed or replaced while the run wrote to it, so the run's files are lost; the same command "
            "starts the run again from the beginning"
        ) from error


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Converts file system errors in the ``with`` block to a ``ConfigError`` about ``path``, except for a full disk."""
    try:
        yield
    except OSError as error:
        if no_room(error, path) is not None:
            raise
        raise ConfigError(
            [f"paths.out={path}: cannot be written ({error.strerror or error}); set another paths.out= or name="]
        ) from error


def _anew(cfg: DictConfig) -> bool:
    """Returns whether the run starts from the beginning (``fresh=true``). A job that Slurm requeued resumes."""
    return bool(cfg.fresh) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"


def _has_result(path: Path) -> bool:
    """Returns whether the folder has a readable ``result.json``. The run writes a damaged file again."""
    fault = _fault(path / RESULT)
    if fault and is_first():
        logger.warning("%s is %s; the run writes this file again", path / RESULT, fault)
    return fault is None


def _fault(path: Path) -> str | None:
    """Returns what is wrong with a ``result.json``: None for a good file, an empty text if there is no file. The schema
    of ``runs/result_file.py`` is not used, because it takes time to import.
    """
    try:
        if not os.path.lexists(path):
            return ""
        if not path.is_file():
            return "not a regular file"
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return f"damaged ({type(error).__name__})"
    missing = _OF_A_RESULT - set(found) if isinstance(found, dict) else _OF_A_RESULT
    return f"not a result: it lacks {', '.join(sorted(missing))}" if missing else None


def _differing(cfg: DictConfig, path: Path) -> list[str]:
    return differences(read_record(path), recorded(cfg))


def _refuse_another(cfg: DictConfig, path: Path) -> None:
    differing = _differing(cfg, path)
    if differing:
        lines = "\n".join(f"  - {line}" for line in differing)
        more = ""
        if len(differing) == 1 and differing[0].startswith("trainer.max_epochs:"):
            whole = OmegaConf.select(cfg, "policy.lora.r") == 0 or OmegaConf.select(cfg, "policy.start") is not None
            start = f"policy.model={path / 'model'}" if whole else f"policy.start={path / 'adapter'}"
            more = f". To train the other run's policy further, set name=... and {start}"
        raise ConfigError(
            [
                f"{path} contains a run of another configuration:\n{lines}\n"
                f"Give this run a folder of its own (name=...), or rename the other run's folder (fresh=true){more}"
            ]
        )


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")  # lies beside the folder, because the folder may be renamed
    while True:
        with _writable(path):
            if lock.exists() and not lock.is_file():
                raise OSError(errno.EINVAL, f"{lock.name} in the parent folder is not a regular file; remove this file")
            stream = lock.open("w")
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it if the process is killed
            except BlockingIOError:
                raise ConfigError(
                    [f"{path}: another process is running in this folder; wait for its end, or choose another name=..."]
                ) from None
            # The folder belongs to the process that locks the file of this name, and only the owner removes the file.
            # The previous owner may have removed the file after it was opened here, and another process may have
            # created and locked a new file. In this case, this process tries again.
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
