"""Finds values that no part of a configuration can use (such as NaN or an empty text), and overrides that Hydra would
misread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config.schema import ConfigError

_DEEP = 500  # largest number of brackets in one argument
_WHOLE = 2**53  # above this number, floating point cannot represent every whole number
_WAYS = ("none", "partial", "object", "all")  # values of Hydra's _convert_
_FROM_RUN = ("allocator", "gate", "engine")  # parts that receive some of their arguments from the run
_OF_HYDRA = {  # settings of Hydra -> what to do instead
    "hydra.run.dir": "a run creates its own folder; name it with paths.out=...",
    "hydra.job.chdir": "a run's paths are relative to the folder in which the run is started; leave out this setting",
    "hydra.mode": "the argument -m starts several runs; leave out this setting",
}
_SEVERAL = ("callbacks", "logger")  # groups from which a run may choose several options
_OPTIONAL = (*_SEVERAL, "experiment", "debug")  # groups from which a run may choose no option


def unusable_values(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yields a message for each unusable value in the settings of a part. Unusable are numbers that are not finite or
    too large, empty texts, and wrong values of Hydra's keys.

    An empty text usually comes from a shell variable that was not set, and would count as null in some places. Empty
    texts in loggers are not reported, because they repeat the run's name and folder, which are checked elsewhere.
    """
    for key, value in node.items():
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{place}: must be a finite number, got {value}"
        elif isinstance(value, int) and abs(value) >= _WHOLE:
            yield f"{place}: must be a whole number below {_WHOLE}, got a number of {len(str(abs(value)))} digits"
        elif isinstance(value, str) and not value.strip() and key != "_target_" and not path.startswith("logger."):
            yield f"{place}: the value is empty; give a value, or {place}=null if this setting may be null"
        elif key in ("_partial_", "_recursive_") and not isinstance(value, bool):
            yield f"{place}: must be true or false, got {value!r}"
        elif key == "_partial_" and value and path.partition(".")[0] not in _FROM_RUN:
            yield f"{place}: only {', '.join(_FROM_RUN)} take arguments from the run; leave out this key"
        elif key == "_convert_" and value not in _WAYS:
            yield f"{place}: must be one of {', '.join(_WAYS)}, got {value!r}"


def bad_name(name: Any) -> Iterator[str]:
    """Yields a message if the name of a run cannot be the name of a folder below ``outputs``."""
    parts = name.split("/") if isinstance(name, str) else []
    if parts and (not name.strip() or {"", ".", ".."} & set(parts) or not name.isprintable()):
        yield (
            f"name: {name!r} cannot be the name of a folder below outputs; use letters, digits and punctuation, and no "
            "part between slashes that is empty, . or .. (to write elsewhere, set paths.out=...)"
        )


def refuse_overrides(arguments: Sequence[str], folder: Path) -> None:
    """Refuses overrides that Hydra would misunderstand, or would refuse without naming the key.

    The refused overrides are: groups set to null, to a number, or to several choices, which Hydra would merge;
    arguments that are nested too deeply; settings of Hydra that the run makes itself; and folders of configuration
    files that do not exist. In a distributed run, Lightning writes the commands of all processes except the first. In
    these commands, settings of Hydra are allowed.

    Args:
        arguments: the arguments of the command line, without the program's name.
        folder: the configuration folder, whose subfolders are the groups.

    Raises:
        ConfigError: an override is refused. The message names all such overrides.
    """
    by_lightning = any(argument.startswith("hydra.job.name=train_ddp_process_") for argument in arguments)
    typed = [argument for argument in arguments if not (by_lightning and argument.startswith("hydra."))]
    if mistakes := [mistake for argument in typed for mistake in _misused(argument, folder)]:
        raise ConfigError(mistakes)


def _misused(argument: str, folder: Path) -> Iterator[str]:
    key, equals, value = argument.lstrip("+").partition("=")
    is_group = re.fullmatch(r"\w[\w/]{0,99}", key) is not None and (folder / key).is_dir()
    if min(map(argument.count, "[]")) > _DEEP or argument.count("{") > _DEEP:
        yield f"{argument[:40]}...: this argument is nested too deeply; flatten it, or write it into a file"
    elif key in _OF_HYDRA and equals:
        yield f"{key}: {_OF_HYDRA[key]}"
    elif key == "hydra.searchpath" and (gone := [place for place in _folders(value) if not place.is_dir()]):
        yield f"hydra.searchpath: there is no folder {gone[0]}; correct it, or leave it out"
    elif re.fullmatch(r"hydra\.(launcher|sweeper)\._target_", key) and equals:
        yield f"{argument}: Hydra's plugins are chosen as groups; write hydra/launcher=NAME or hydra/sweeper=NAME"
    elif equals and (is_group or not key) and re.fullmatch(r"[-+]?[\d.]+|true|false", value.lower()):
        yield f"{key}={value}: {key} is a group; give the name of one of its files, not a number or truth value"
    elif is_group and value == "null":
        off = next((name for name in ("none", "never") if (folder / key / f"{name}.yaml").is_file()), None)
        remedy = (
            f"to use none, set {key}={off}" if off else "every run needs this group; choose one of the group's files"
        )
        yield f"{key}=null: a group cannot be null; {f'to use none, write ~{key}' if key in _OPTIONAL else remedy}"
    elif is_group and key not in _SEVERAL and re.fullmatch(r"\[.*,.*\]", value, re.DOTALL):
        yield f"{key}: a run has one {key}, but the list names several; choose one"


def _folders(places: str) -> list[Path]:
    """Returns the folders in a value of ``hydra.searchpath`` such as ``[file://mine/conf,pkg://theirs.conf]``. Places
    that are not folders, such as ``pkg://theirs.conf``, are left out.
    """
    named = [place.strip(" '\"").removeprefix("file://") for place in places.strip("[] ").split(",")]
    return [Path(place) for place in named if "://" not in place]
