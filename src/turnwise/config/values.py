"""Values that no part of a configuration can use, whichever part it is; and overrides that Hydra would misunderstand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config.schema import ConfigError

_DEEP = 500  # brackets of an argument
_WHOLE = 2**53  # floating point cannot represent every whole number above this one
_WAYS = ("none", "partial", "object", "all")  # of Hydra's _convert_
_FROM_RUN = ("allocator", "gate", "engine")  # parts that take some of their arguments from the run
_SEVERAL = ("callbacks", "logger")  # groups of which a run may choose several
_OPTIONAL = (*_SEVERAL, "experiment", "debug")  # groups of which a run may choose none


def unusable_values(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Mistakes of a part's arguments: numbers that are not finite or are too large, empty texts, wrong values of Hydra's keys.

    An empty text usually comes from a shell variable that was not set, and would count as null in some places. Loggers are left
    out, because they repeat the name and the folder of the run, which have checks of their own.
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


def refuse_overrides(arguments: Sequence[str], folder: Path) -> None:
    """Refuse overrides that Hydra takes in another sense than a person means, or refuses without naming the key.

    These are groups that are set to null, to a number, or to several choices, which Hydra would lay over each other; arguments
    that are nested too deeply; and the folder of a run, which Turnwise makes itself. The further processes of a
    run may name that folder, because Lightning writes their command.

    Args:
        arguments: the command line without the program.
        folder: the configuration folder, whose folders are the groups.

    Raises:
        ConfigError: such overrides are among them; the message names all of them.
    """
    by_lightning = any(argument.startswith("hydra.job.name=train_ddp_process_") for argument in arguments)
    typed = [argument for argument in arguments if not (by_lightning and argument.startswith("hydra."))]
    if mistakes := [mistake for argument in typed for mistake in _misused(argument, folder)]:
        raise ConfigError(mistakes)


def _misused(argument: str, folder: Path) -> Iterator[str]:
    key, equals, value = argument.lstrip("+").partition("=")
    is_group = re.fullmatch(r"\w[\w/]{0,99}", key) is not None and (folder / key).is_dir()
    if min(map(argument.count, "[]")) > _DEEP or argument.count("{") > _DEEP:
        yield f"{argument[:40]}...: nested too deeply to be read; write it flat, or into a file"
    elif key == "hydra.run.dir" and equals:
        yield "hydra.run.dir: a run makes its folder itself; name it with paths.out=..."
    elif re.fullmatch(r"hydra\.(launcher|sweeper)\._target_", key) and equals:
        yield f"{argument}: Hydra's plugins are chosen as groups: hydra/launcher=NAME"
    elif equals and (is_group or not key) and re.fullmatch(r"[-+]?[\d.]+|true|false", value.lower()):
        yield f"{key}={value}: a group takes the name of one of its files, and no number"
    elif is_group and value == "null":
        off = next((name for name in ("none", "never") if (folder / key / f"{name}.yaml").is_file()), None)
        remedy = f"a run without one has {key}={off}" if off else "a run needs one; choose one of its files"
        yield f"{key}=null: {f'a run without any is given ~{key}' if key in _OPTIONAL else remedy}"
    elif is_group and key not in _SEVERAL and re.fullmatch(r"\[.*,.*\]", value, re.DOTALL):
        yield f"{key}: a run has one {key}, and a list names several; choose one"
