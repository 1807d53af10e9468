"""Builds the parts of a configuration with their constructors."""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import ConfigError
from turnwise.errors import InputError, first_line

_FULL_KEY = re.compile(r"^full_key: (\S+)$", re.MULTILINE)  # a line in Hydra's messages


def build(cfg: DictConfig, key: str, **given: Any) -> Any:
    """Builds the part of the configuration under the dotted ``key`` (such as ``logger.wandb``) with its constructor, or
    returns None if the configuration lacks the part. Raises a ConfigError if the constructor refuses its arguments.

    ``given`` holds objects that only the program can supply. A part with ``_partial_`` in its file receives those
    objects whose names are parameters of its constructor.
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
