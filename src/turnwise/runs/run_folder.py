"""The output folder of a run: its lock, its ``config.yaml``, and whether a run starts there, resumes or is refused.

If the folder holds a run of the same configuration, that run resumes. If it holds a run of another configuration that
has saved a checkpoint or a result, the new run is refused. Any other folder is renamed. No saved file is lost. Two
configurations are the same if their hashes are: the hash of the settings that decide what the run computes, with the
names of the parts. Moving code changes no hash; changing or adding a default does.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import ConfigError
from turnwise.files import PART, atomic_write, no_room

# -- the hash of a configuration ---------------------------------------------------------------------------------------


# settings that do not change what a run computes, such as its name, folder or progress display
_SHOWN_ONLY = (
    "name",
    "fresh",
    "check",
    "iterations",  # trainer.max_epochs is the same number
    "paths",
    "logger",
    "table",
    "judge.client",  # the same model may answer at another address
    "judge.cache",
    "engine.url",  # the same weights may be served at another address
    "engine.lanes",
    "rollout.environment_threads",
    "rollout.spool",  # of older runs: decided how a killed run resumed
    "engine.key_variable",
    *(f"engine.{name}" for name in ("concurrency", "attempts", "attempt_limit", "wait_limit", "backoff")),
    "update.max_skips",  # only decides when a run gives up
    "update.allow_empty",
    "eval.every",  # evaluation during training does not change what is trained
    "callbacks.progress",
    "callbacks.checkpoint.dirpath",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.enable_model_summary",
    "update.memory_gb",
    "update.recompute",
    "update.offload",
    # several processes together compute the same result as one process (docs/scaling.md)
    *(f"trainer.{name}" for name in ("devices", "num_nodes", "strategy")),
)
# packages whose parts are identified by the name of their class alone, so that code can move between modules
_OWN = ("turnwise", "turnwise_worlds", "turnwise_study")


def config_hash(cfg: DictConfig) -> str:
    return hash_of(run_config(cfg))


def hash_of(record: Mapping[str, Any]) -> str:
    """Returns the hash (12 hex digits) of the settings that :func:`run_config` returned."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


def run_config(cfg: DictConfig) -> dict[str, Any]:
    """Returns dotted key -> value for the settings that decide what a run computes. A part of this project has the name
    of its class in place of its import path; any other part keeps its path.
    """
    record = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(record, dict)
    for key in _SHOWN_ONLY:
        *parents, last = key.split(".")
        node: Any = record
        for parent in parents:
            node = (node or {}).get(parent)
        if isinstance(node, dict):
            node.pop(last, None)
    return flat_record(_run_config_by_class(record))


def _run_config_by_class(node: Any) -> Any:
    if isinstance(node, list):
        return [_run_config_by_class(item) for item in node]
    if not isinstance(node, dict):
        return node
    named = {key: _run_config_by_class(value) for key, value in node.items()}
    target = named.get("_target_")
    if isinstance(target, str) and target.partition(".")[0] in _OWN:
        named["_target_"] = target.rpartition(".")[2]
    return named


def flat_record(node: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted key -> value, without unused parts (values of None and empty mappings)."""
    if isinstance(node, Mapping):
        leaves: dict[str, Any] = {}
        for key, value in node.items():
            leaves.update(flat_record(value, f"{prefix}.{key}" if prefix else str(key)))
        return leaves
    return {} if node is None else {prefix: node}


logger = logging.getLogger(__name__)

RECORD, RESULT = "config.yaml", "result.json"
_OF_A_RESULT = {"method", "env", "scale", "seed", "in_domain"}  # keys of every result (runs/result_file.py)
_REMADE = {RECORD, "report.html", "wandb", "engine"}  # files and folders that every start makes again
_ABSENT = "not set"
_NAMED = {"trainer.max_epochs": "iterations"}  # a recorded setting -> the key with which it is set
_SHOWN = 30  # greatest number of differences that a message lists

# -- processes ---------------------------------------------------------------------------------------------------------


def is_first() -> bool:
    return not rank().strip("0.")


def rank() -> str:
    """Returns the rank of this process: ``0`` for a single process, ``NODE.LOCAL`` if the launcher gives both ranks."""
    for names in (("RANK",), ("NODE_RANK", "LOCAL_RANK"), ("SLURM_PROCID",)):
        if names[-1] in os.environ:
            return ".".join(os.environ.get(name, "0") for name in names)
    return "0"


# -- config.yaml -------------------------------------------------------------------------------------------------------


def read_record(folder: Path) -> dict[str, Any]:
    """Returns what :func:`run_config` returned for the ``config.yaml`` in ``folder``. Raises a ConfigError if it is damaged."""
    path = folder / RECORD
    try:
        cfg = OmegaConf.create(path.read_text(encoding="utf-8"))
        if not isinstance(cfg, DictConfig):
            raise ValueError("it is not a mapping of keys to values")
        return run_config(cfg)
    except Exception as error:  # OmegaConf raises errors of many types
        why = " ".join(str(error).split())[:200].encode("unicode_escape").decode()
        raise ConfigError(
            [
                f"{path} is damaged ({why or type(error).__name__}); restore it, give the new run a folder of its own "
                "(name=...), or rename this folder (fresh=true)"
            ]
        ) from error


def folder_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns one line for each key whose values differ, at most 30; the value in ``old`` comes first."""
    there, here = ({_NAMED.get(key, key): value for key, value in flat_record(side).items()} for side in (old, new))
    lines = [
        f"{key}: {there.get(key, _ABSENT)} in the other run, {here.get(key, _ABSENT)} in this run"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, _ABSENT) != here.get(key, _ABSENT)
    ]
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]


# -- the folder --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder that a run writes to."""

    path: Path
    resumed: bool  # whether a run of this configuration was started in this folder before
    finished: bool  # whether the folder has a readable result


@contextmanager
def claim(cfg: DictConfig) -> Iterator[RunFolder]:
    """Yields the run's folder, locked by the first rank against other processes until the ``with`` block ends.

    The first claim writes the resolved configuration to the folder. With ``fresh=true``, the folder of an existing run
    is first renamed to ``<folder>.old-<n>``, unless Slurm requeued the job, which then resumes. If the block fails and
    the folder has only files that every start makes again, the folder is emptied. A ConfigError says if the folder
    cannot be written, holds a run of another configuration, or is locked.
    """
    path = Path(cfg.paths.out)
    # a job that Slurm requeued resumes
    anew = bool(cfg.fresh) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    if not is_first():
        yield RunFolder(path, (path / RECORD).exists(), not anew and _has_result(path))
        return
    with _writable_folder(path):
        path.mkdir(parents=True, exist_ok=True)
    with _locked_folder(path):
        with _writable_folder(path):
            resumed = _prepare_folder(cfg, path, anew)
        finished = _has_result(path)
        try:
            yield RunFolder(path, resumed, finished)
        except BaseException:
            with suppress(OSError):
                if _REMADE.issuperset(file.relative_to(path).parts[0] for file in path.rglob("*") if not file.is_dir()):
                    for entry in path.iterdir():
                        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            raise


def _prepare_folder(cfg: DictConfig, path: Path, anew: bool) -> bool:
    if os.path.lexists(path / RECORD) and not anew:
        differing = folder_differences(read_record(path), run_config(cfg))
        if differing and ((path / RESULT).exists() or any(path.glob("checkpoints/*.ckpt"))):
            raise ConfigError([_folder_refusal(cfg, path, differing)])
        anew = bool(differing)
    if os.path.lexists(path / RECORD) and anew:
        _put_aside(path)
    resumed = os.path.lexists(path / RECORD)
    if not resumed:
        if (path / "checkpoints").exists():
            raise ConfigError(
                [f"{path} has checkpoints but no {RECORD}; remove the folder, or choose another name=..."]
            )
        with atomic_write(path / RECORD) as part:
            part.write_text(OmegaConf.to_yaml(cfg, resolve=True, sort_keys=False), encoding="utf-8")
    for part in list(path.rglob(f".*{PART}")):  # unfinished files left by a killed process
        shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
    return resumed


def _folder_refusal(cfg: DictConfig, path: Path, differing: list[str]) -> str:
    lines = "\n".join(f"  - {line}" for line in differing)
    more = ""
    if len(differing) == 1 and differing[0].startswith("iterations:"):
        whole = OmegaConf.select(cfg, "policy.lora.r") == 0
        start = f"policy.model={path / 'model'}" if whole else f"policy.start={path / 'adapter'}"
        more = f". To train the other run's policy further, set name=... and {start}"
    return (
        f"{path} contains a run of another configuration:\n{lines}\n"
        f"Give this run a folder of its own (name=...), or rename the other run's folder (fresh=true){more}"
    )


def _put_aside(path: Path) -> None:
    n = 1
    while (aside := path.with_name(f"{path.name}.old-{n}")).exists():
        n += 1
    path.rename(aside)
    path.mkdir()
    logger.warning("%s: another run is in this folder; it was renamed to %s", path, aside)


def _has_result(path: Path) -> bool:
    """Whether the folder has a readable ``result.json``; its schema takes too long to import. The run writes a damaged file
    again.
    """
    if not (path / RESULT).exists():
        return False
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads((path / RESULT).read_bytes())
        if isinstance(content, dict) and set(content) >= _OF_A_RESULT:
            return True
    if is_first():
        logger.warning("%s is damaged; the run writes this file again", path / RESULT)
    return False


@contextmanager
def _writable_folder(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if no_room(error, path) is not None:
            raise
        raise ConfigError(
            [f"paths.out={path}: cannot be written ({error.strerror or error}); set another paths.out= or name="]
        ) from error


@contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")  # lies beside the folder, because the folder may be renamed
    while True:
        with _writable_folder(path):
            stream = lock.open("w")
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it if the process is killed
            except BlockingIOError:
                raise ConfigError(
                    [f"{path}: another process is running in this folder; wait for its end, or choose another name=..."]
                ) from None
            # the previous owner may have removed the file after it was opened here, and another have locked a new one
            try:
                same = os.path.samestat(os.fstat(stream.fileno()), lock.stat())
            except FileNotFoundError:
                same = False
            if same:
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
