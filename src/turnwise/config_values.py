"""Values that no part of a configuration can use, whatever the part is: refused by one rule for all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config import ConfigError

_DEEP = 500  # brackets of an argument
_WHOLE = 2**53  # from here on not every whole number can be told from its neighbour once it is divided
_WAYS = ("none", "partial", "object", "all")  # of Hydra's _convert_
_FROM_RUN = ("allocator", "gate", "engine")  # parts that take some of their arguments from the run
_SEVERAL = ("callbacks", "logger")  # groups of which a run may choose several


def unusable_values(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Mistakes of a part's arguments: numbers that are not finite, empty texts, and Hydra's own keys with other values.

    An empty text mostly is a variable of the shell that was not set, and would count as null in some places. Loggers repeat
    the name and the folder of the run, which are told as themselves.
    """
    for key, value in node.items():
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{place}: must be a finite number, got {value}"
        elif isinstance(value, int) and abs(value) >= _WHOLE:
            yield f"{place}: a whole number below {_WHOLE}, got one of {len(str(abs(value)))} digits"
        elif isinstance(value, str) and not value.strip() and key != "_target_" and not path.startswith("logger."):
            yield f"{place}: empty; give a value, or {place}=null where it takes none"
        elif key in ("_partial_", "_recursive_") and not isinstance(value, bool):
            yield f"{place}: true or false, got {value!r}"
        elif key == "_partial_" and value and path.partition(".")[0] not in _FROM_RUN:
            yield f"{place}: only {', '.join(_FROM_RUN)} take arguments from the run; leave it out"
        elif key == "_convert_" and value not in _WAYS:
            yield f"{place}: one of {', '.join(_WAYS)}, got {value!r}"


def strange_name(name: Any) -> Iterator[str]:
    """Mistakes of the name of a run, which is a folder below ``outputs``."""
    parts = name.split("/") if isinstance(name, str) else []
    if parts and (not name.strip() or {"", ".", ".."} & set(parts) or not name.isprintable()):
        yield (
            f"name: got {name!r}, which is no name of a folder below outputs; give letters, digits and marks without "
            "empty parts, . or .. (paths.out=... writes elsewhere)"
        )


def refuse_several(arguments: Sequence[str], folder: Path) -> None:
    """Refuse a list of choices for a group of which a run has one: Hydra would lay them over each other. And a folder of Hydra's.

    Args:
        arguments: the command line without the program.
        folder: the configuration folder, whose folders are the groups.

    Raises:
        ConfigError: such an override is among them.
    """
    if deep := [
        argument for argument in arguments if min(map(argument.count, "[]")) > _DEEP or argument.count("{") > _DEEP
    ]:
        raise ConfigError([f"{deep[0][:40]}...: nested too deeply to be read; write it flat, or into a file"])
    if any(argument.lstrip("+").startswith("hydra.run.dir=") for argument in arguments):
        raise ConfigError(["hydra.run.dir: a run makes its folder itself; name it with paths.out=..."])
    if plugin := [argument for argument in arguments if re.match(r"\+*hydra\.(launcher|sweeper)\._target_=", argument)]:
        raise ConfigError([f"{plugin[0]}: Hydra's plugins are chosen as groups: hydra/launcher=NAME"])
    for key, equals, value in (argument.lstrip("+").partition("=") for argument in arguments):
        number = re.fullmatch(r"[-+]?[\d.]+|true|false", value.lower())
        if equals and number and (not key or (folder / key).is_dir()):
            raise ConfigError([f"{key}={value}: a group takes the name of one of its files, and no number"])
    found = [re.fullmatch(r"\+*([\w/]+)=\[.*,.*\]", argument, re.DOTALL) for argument in arguments]
    keys = [match[1] for match in found if match and match[1] not in _SEVERAL and (folder / match[1]).is_dir()]
    if keys:
        raise ConfigError([f"{key}: a run has one {key}, and a list names several; choose one" for key in keys])
