"""Declares the top-level keys of every configuration, names runs, composes configurations and builds their parts.

The keys of a part are the parameters of its constructor (:mod:`turnwise.config.check`) and not declared here.
"""

from __future__ import annotations

import hashlib
import inspect
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.plugins.config_source import ConfigResult
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from turnwise.config.follow import follow
from turnwise.errors import InputError, first_line


class ConfigError(InputError):
    """An error that lists all mistakes in a configuration. Each message names the key and the remedy."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = mistakes
        several = f"{len(mistakes)} mistakes in the configuration:\n" + "\n".join(f"  - {m}" for m in mistakes)
        super().__init__(mistakes[0] if len(mistakes) == 1 else several)


@dataclass
class Paths:
    """Folders that a run writes to: ``out`` for the run itself, ``cache`` for files that several runs share."""

    out: str = MISSING
    cache: str = MISSING


@dataclass
class RunConfig:
    """The top-level keys of ``conf/train.yaml``. A part that the run's method does not use is None."""

    name: str = MISSING
    method: str = MISSING
    scale: str = MISSING
    seed: int = MISSING
    fresh: bool = False
    check: bool = False
    iterations: int = MISSING
    paths: Paths = field(default_factory=Paths)
    # these parts decide at which states rollouts start, how many are sampled, and when they are stopped
    env: Any = None
    data: Any = None
    states: Any = None
    allocator: Any = None
    gate: Any = None
    rollout: Any = None
    # rewards, advantages and the update
    reward: Any = None
    advantage: Any = None
    loss: Any = None
    update: Any = None
    # models
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


LONGEST_NAME = 120  # largest length of a folder's name in characters; file systems allow 255 bytes


_PLAIN = re.compile(r"[+~\w./@]+=[\w.+~/-]*")  # an override of which a folder's name loses nothing


def run_name(preset: str, overrides: str = "", dropped: str = "") -> str:
    """The preset's name, then a subfolder named after the overrides of this run, such as ``seed-3_lr-0.1``, without
    ``method=x`` if the preset is named x, and without the override of the group ``dropped``. A hash of the whole is
    added if the name is cut, or loses characters that would need quotes on a command line.
    """
    gone = (f"method={preset}", f"{dropped}=")
    kept = [
        item for item in overrides.split(",") if item and item != gone[0] and not (dropped and item.startswith(gone[1]))
    ]
    whole = ",".join(kept).replace("/", "+")
    tail = re.sub(r"[^\w.+~-]", "_", whole.replace("=", "-"))
    if len(tail) > LONGEST_NAME or not all(map(_PLAIN.fullmatch, kept)):
        digest = hashlib.sha256(whole.encode()).hexdigest()[:10]
        tail = f"{tail[: LONGEST_NAME - 11]}~{digest}"
    return f"{preset}/{tail}" if tail else preset


def verifier(method: str, anchored: str | None, other: str | None) -> str | None:
    """The verifier that an environment has by default: with PivotRL and its baseline ``anchored``, which compares with
    the demonstrated action as PivotRL's does in the terminal (App. A.2), else ``other``.
    """
    return anchored if method in ("pivotrl", "local") else other


def register(folder: Path) -> None:
    """Registers the root schema and the options of ``options.yaml`` with Hydra, and the resolvers with OmegaConf. May be
    called repeatedly. ``folder`` is the configuration folder.
    """
    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig)
    for group, options in small_options(folder).items():
        for name, node in options.items():
            store.store(name=name, node=node, group=group, package="_global_")
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)
    OmegaConf.register_new_resolver("verifier", verifier, replace=True)
    OmegaConf.register_new_resolver("follow", follow, replace=True)


@cache
def small_options(folder: Path) -> dict[str, dict[str, Any]]:
    """Group -> option -> content, of the options in ``options.yaml``, which have no file of their own."""
    path = folder / "options.yaml"
    options: dict[str, dict[str, Any]] = yaml.safe_load(path.read_bytes()) if path.is_file() else {}
    return options


class _ReadOnce(CachingConfigRepository):
    """A source of configuration files for Hydra that reads each file once. ``read`` holds the contents."""

    def __init__(self, delegate: IConfigRepository, read: dict[str, bytes]) -> None:
        super().__init__(delegate)
        self.read = read

    def __deepcopy__(self, memo: object) -> _ReadOnce:  # Hydra copies this object for each configuration
        return self

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.read:
            self.read[config_path] = pickle.dumps(self.delegate.load_config(config_path=config_path))
        # a copy is returned, because a configuration may change the objects that it gets
        found: ConfigResult | None = pickle.loads(self.read[config_path])
        return found


def compose_config(overrides: Sequence[str], folder: Path, read: dict[str, bytes] | None = None) -> DictConfig:
    """The configuration that ``python train.py <overrides>`` would use. ``turnwise.config.overrides.explain`` turns the
    HydraException or OmegaConfBaseException of overrides that cannot be composed into a clear message. Configurations
    that share ``read``, a cache of the configuration files, take half the time.
    """
    register(folder)
    hydra_config = HydraConfig.instance()
    outer = hydra_config.cfg
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder.resolve()), version_base="1.3"):
        if read is not None:
            loader: Any = GlobalHydra.instance().config_loader()
            loader.repository = _ReadOnce(loader.repository, read)
        cfg = compose("train", list(overrides), return_hydra_config=True)
        try:
            hydra_config.set_config(cfg)
            with open_dict(cfg):
                cfg.name = cfg.name  # resolved now, because the resolver reads Hydra's command line
                del cfg["hydra"]
        finally:
            hydra_config.cfg = outer
    return cfg


_FULL_KEY = re.compile(r"^full_key: (\S+)$", re.MULTILINE)  # a line in Hydra's messages


def build(cfg: DictConfig, key: str, **given: Any) -> Any:
    """Builds the part under the dotted ``key`` (such as ``logger.wandb``), or returns None if there is none. Raises a
    ConfigError if the constructor refuses its arguments. A part with ``_partial_`` in its file receives those objects
    of ``given`` whose names are parameters of its constructor.
    """
    node = OmegaConf.select(cfg, key)
    return None if node is None else build_node(node, key, **given)


def build_node(node: Any, key: str, **given: Any) -> Any:
    """Builds a part from its settings ``node``, as :func:`build` does; ``key`` is the part's key."""
    try:
        part = instantiate(node)
        if not isinstance(part, partial):
            return part
        named = inspect.signature(part.func).parameters
        return part(**{name: value for name, value in given.items() if name in named})
    except InputError:
        raise
    except ValueError as error:  # raised by a partial part, which gets its last arguments only here
        raise ConfigError([f"{key}: {first_line(error)}"]) from error
    except InstantiationException as error:
        reason = error.__cause__ if isinstance(error.__cause__, ValueError | TypeError) else error
        within = _FULL_KEY.search(str(error))  # names a part that is nested in another one
        place = within[1] if within and within[1].startswith(f"{key}.") else key
        raise ConfigError([f"{place}: {first_line(reason)}"]) from error
