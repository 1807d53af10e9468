"""The root of every configuration: its keys, and the name of a run.

A part's constructor is its own schema (see :mod:`turnwise.config.check`); only what belongs to no part is declared here.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from turnwise.errors import InputError


class ConfigError(InputError):
    """Mistakes in a configuration, all of them, each naming its key and the remedy."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes
        if len(mistakes) == 1:
            text = mistakes[0]
        else:
            text = f"{len(mistakes)} mistakes in the configuration:\n" + "\n".join(f"  - {m}" for m in mistakes)
        super().__init__(text)


@dataclass
class Paths:
    """Where a run writes."""

    out: str = MISSING
    cache: str = MISSING


@dataclass
class RunConfig:
    """Keys of ``conf/train.yaml``. A part that a method does not use is null."""

    name: str = MISSING
    method: str = MISSING
    scale: str = MISSING
    seed: int = MISSING
    fresh: bool = False
    paths: Paths = field(default_factory=Paths)
    # where to act, how often, when to stop
    env: Any = None
    data: Any = None
    states: Any = None
    allocator: Any = None
    gate: Any = None
    rollout: Any = None
    # what it was worth, and what to do about it
    reward: Any = None
    advantage: Any = None
    loss: Any = None
    update: Any = None
    # who acts, who predicts, who judges
    base: str = MISSING
    policy: Any = None
    predictor: Any = None
    judge: Any = None
    engine: Any = None
    # Lightning
    trainer: Any = None
    logger: Any = None
    callbacks: Any = None
    eval: Any = None


LONGEST_NAME = 120  # characters of a folder; file systems stop at 255 bytes


def run_name(preset: str, overrides: str = "", dropped: str = "") -> str:
    """Folder of a run: the preset's name, and below it the overrides that make this run another one.

    ``method=x`` is dropped where the preset is named x, and so is the override of the group ``dropped``. Slashes of values
    become ``+``, and what is too long for a folder ends in its hash.
    """
    gone = (f"method={preset}", f"{dropped}=")
    kept = [
        item for item in overrides.split(",") if item and item != gone[0] and not (dropped and item.startswith(gone[1]))
    ]
    tail = ",".join(kept).replace("/", "+")
    if len(tail) > LONGEST_NAME:
        digest = hashlib.sha256(tail.encode()).hexdigest()[:10]
        tail = f"{tail[: LONGEST_NAME - 11]}~{digest}"
    return f"{preset}/{tail}" if tail else preset


def register() -> None:
    """Tell Hydra of the root schema and OmegaConf of ``${run_name:preset,overrides}``. Idempotent."""
    ConfigStore.instance().store(name="run_schema", node=RunConfig)
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)


def compose_config(overrides: Sequence[str], folder: Path, primary: str = "train") -> DictConfig:
    """The configuration that ``python train.py <overrides>`` would run, for scripts, notebooks and tests.

    Raises:
        HydraException, OmegaConfBaseException: it does not compose; ``turnwise.config.hydra_errors.explain`` says why in words.
    """
    register()
    hydra_config = HydraConfig.instance()
    outer = hydra_config.cfg
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder.resolve()), version_base="1.3"):
        cfg = compose(primary, list(overrides), return_hydra_config=True)
        try:
            hydra_config.set_config(cfg)
            with open_dict(cfg):
                cfg.name = cfg.name  # resolved now: it asks Hydra for the command line
                del cfg["hydra"]
        finally:
            hydra_config.cfg = outer
    return cfg


_FULL_KEY = re.compile(r"^full_key: (\S+)$", re.MULTILINE)  # in Hydra's message


def build(cfg: DictConfig, key: str, **given: Any) -> Any:
    """The part under ``key``, from its constructor; None where the method uses none.

    Args:
        cfg: of the run.
        key: a group, such as ``loss`` or ``logger.wandb``.
        given: what only the program can supply. A part whose file says ``_partial_`` takes what its constructor names of it.

    Raises:
        ConfigError: the constructor refused what it was given.
    """
    node = OmegaConf.select(cfg, key)
    return None if node is None else build_node(node, key, **given)


def build_node(node: Any, key: str, **given: Any) -> Any:
    """As :func:`build`, from the node that lies under ``key``."""
    try:
        part = instantiate(node)
        if not isinstance(part, partial):
            return part
        named = inspect.signature(part.func).parameters
        return part(**{name: value for name, value in given.items() if name in named})
    except InputError:
        raise
    except ValueError as error:  # of a part that only now has all of its arguments
        raise ConfigError([f"{key}: {first_line(error)}"]) from error
    except InstantiationException as error:
        reason = error.__cause__ if isinstance(error.__cause__, ValueError | TypeError) else error
        within = _FULL_KEY.search(str(error))  # of a part that stands inside another one
        place = within[1] if within and within[1].startswith(f"{key}.") else key
        raise ConfigError([f"{place}: {first_line(reason)}"]) from error


def first_line(error: BaseException) -> str:
    """An error in one line: other libraries' messages run on."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
