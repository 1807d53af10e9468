"""Everything about a command line: explains Hydra's errors with the nearest valid names, and refuses secrets and
overrides that Hydra would misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException, ValidationError
from yaml import YAMLError

from turnwise.config.check import HERE, NOTES, check_config, meant, secrets_in, suggest
from turnwise.config.schema import ConfigError, build, compose_config, small_options

_OF_HYDRA = {  # settings of Hydra -> what to do instead
    "hydra.run.dir": "a run creates its own folder; name it with paths.out=...",
    "hydra.job.chdir": "a run's paths are relative to the folder in which the run is started; leave out this setting",
    "hydra.mode": "the argument -m starts several runs; leave out this setting",
}
_SEVERAL = ("callbacks", "logger")  # groups from which a run may choose several options
_OPTIONAL = (*_SEVERAL, "cluster", "debug")  # groups from which a run may choose no option
_OF_OWN = {"policy": "policy.model", "data": "data.file"}  # group -> the key that takes a folder, a file or an id
_FLAGS = {  # of Hydra
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun", "--info"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir", "--experimental-rerun"),
}


def explain(error: Exception, arguments: Sequence[str], folder: Path) -> ConfigError:
    """An error that explains why Hydra refused the ``arguments`` of a command line.

    Refused overrides are removed one by one until Hydra can compose a configuration, which is then checked, so that one
    message names all mistakes. The message of ``error`` (Hydra's own) is used if no override caused it.
    """
    if isinstance(error, OverrideParseException):
        key, equals, value = str(error.override).partition("=")
        if not equals:
            return ConfigError(
                [f"{key}: settings are written as key=value; --help lists them, check=true makes all checks"]
            )
        quoted = f"""'{key}="{value}"'"""
        return ConfigError(
            [f"{error.override}: Hydra cannot read this value; quote it inside the shell's quotes: {quoted}"]
        )
    if isinstance(error, YAMLError):
        return ConfigError([f"a configuration file is not YAML: {_line(error)}"])
    overrides = [argument for argument in arguments if ("=" in argument or argument[0] == "~") and argument[0] != "-"]
    kept = OverridesParser.create().parse_overrides(overrides)
    if {"-m", "--multirun"} & set(arguments):  # one run takes one of their values
        kept = [override for override in kept if not override.is_sweep_override()]
    refused: list[tuple[Override, Exception]] = []
    cfg, refusal = None, error
    while cfg is None and (blamed := _blame(refusal, kept)) is not None:
        kept.remove(blamed)
        refused.append((blamed, refusal))
        try:
            cfg = compose_config([override.input_line or "" for override in kept], folder)
        except (HydraException, OmegaConfBaseException) as another:
            refusal = another
    mistakes = [_message(override, why, cfg, folder) for override, why in refused]
    if cfg is None:
        mistakes.append(_in_a_file(refusal, folder))
    else:
        try:
            check_config(cfg)
        except ConfigError as more:
            mistakes += more.mistakes
    return ConfigError(mistakes)


def _blame(error: Exception, overrides: Sequence[Override]) -> Override | None:
    text = str(error)
    missing = error.missing_cfg_file if isinstance(error, MissingConfigException) else None
    full_key = getattr(error.__cause__ or error, "full_key", None)
    reference = re.search(r"Interpolation key '([^']+)'", text)
    for override in overrides:
        key, line = override.key_or_group, str(override.input_line)
        named = key == full_key or f"'{key}'" in text or line in text
        named = named or (reference is not None and "${" + reference.group(1) in line)
        if missing == f"{key}/{override.value()}" if missing else named:
            return override
    return None


def _message(override: Override, error: Exception, cfg: DictConfig | None, folder: Path) -> str:
    line, key = override.input_line, override.key_or_group
    if isinstance(error, MissingConfigException):
        return f"{line}: {_no_option(key, str(override.value()), folder)}"
    cause = error.__cause__ or error
    if isinstance(cause, ValidationError | InterpolationResolutionError):
        return f"{line}: {_line(cause)}"
    if cfg is None:
        return f"{line}: there is no key '{key}'"
    *parents, last = key.lstrip("+~").split(".")
    if parents[:1] == ["hydra"]:  # cfg does not hold Hydra's own settings
        return f"{line}: {_line(error)}"
    depth = 0
    while depth < len(parents) and isinstance(OmegaConf.select(cfg, ".".join(parents[: depth + 1])), DictConfig):
        depth += 1
    holder = ".".join(parents[:depth])
    wrong = [*parents, last][depth]
    if wrong in (OmegaConf.select(cfg, holder) if holder else cfg):
        if depth < len(parents):
            place = ".".join(parents[: depth + 1])
            return f"{line}: {place} is a single value and has no keys; set {place}=..."
        return f"{line}: {_line(error)}"  # for example +key=... for a key that exists already
    where = f"{holder} has no key '{wrong}'" if holder else f"there is no key '{wrong}'"
    elsewhere = wrong != last and last.lower() in HERE  # such as actor_rollout_ref.rollout.n
    near = meant(last if elsewhere else wrong, OmegaConf.to_container(cfg), "" if elsewhere else holder)  # type: ignore[arg-type]
    return f"{line}: {where}{near}"


def _in_a_file(error: Exception, folder: Path) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        return _no_option(group, option, folder)
    full_key = getattr(error.__cause__ or error, "full_key", None)
    return f"{full_key}: {_line(error)}" if full_key else _line(error)


def _no_option(group: str, option: str, folder: Path) -> str:
    if group == "hydra/launcher" and option in ("joblib", "submitit_local", "submitit_slurm", "ray"):
        package = f"hydra-{option.partition('_')[0]}-launcher"
        return f"hydra/launcher={option}: {package} is not installed here; pip install {package}"
    if group == "logger":
        return f"logger has no '{option}'.{NOTES[group]}"
    own = f"'hydra.searchpath=[file://FOLDER]' finds one of your own, FOLDER/{group}/{option}.yaml"
    near = suggest(option, group_options(folder).get(group, []))
    if group in _OF_OWN:
        own = f"set {_OF_OWN[group]}={option} for one of your own"
        near = near if not re.search(r"[/.]", option) else ""
    return f"{group} has no '{option}'{near}{'' if 'did you mean' in near else f'; {own}'}"


def group_options(folder: Path) -> dict[str, list[str]]:
    """Group -> its options, which have a file of their own or a key in ``options.yaml``, both sorted."""
    options = {group: list(content) for group, content in small_options(folder).items()}
    for path in folder.rglob("*.yaml"):
        options.setdefault(path.parent.relative_to(folder).as_posix(), []).append(path.stem)
    return {group: sorted(names) for group, names in sorted(options.items()) if group != "."}


def _line(error: BaseException) -> str:
    if "add --multirun" in str(error):
        return "one run takes one value; add -m for a run of each, or put a list in brackets"
    return " ".join(str(error).split("\n    full_key")[0].split())


def refuse_overrides(arguments: Sequence[str], folder: Path) -> None:
    """Refuses overrides that Hydra would misunderstand, or would refuse without naming the key. The ConfigError names
    all of them. In the commands that Lightning writes for all processes except the first, settings of Hydra are
    allowed.
    """
    by_lightning = any(argument.startswith("hydra.job.name=train_ddp_process_") for argument in arguments)
    typed = [argument for argument in arguments if not (by_lightning and argument.startswith("hydra."))]
    groups = group_options(folder)
    if mistakes := [mistake for argument in typed for mistake in _misused(argument, groups)]:
        raise ConfigError(mistakes)


def _misused(argument: str, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    key, equals, value = argument.lstrip("+").partition("=")
    without, key = key.startswith("~"), key.removeprefix("~")  # the arguments ~GROUP and ~GROUP=OPTION remove a group
    is_group = key in groups
    if re.search(r"([\[{][^][{}]*){50}", argument):  # Hydra's parser is recursive
        yield f"{argument[:40]}...: this argument is nested too deeply; flatten it, or write it into a file"
    elif key in _OF_HYDRA and equals:
        yield f"{key}: {_OF_HYDRA[key]}"
    elif key == "data.file" and value.startswith("["):
        yield f"{key}: a run reads one file; join several: python scripts/prepare_data.py A B --out all.jsonl"
    elif equals and is_group and re.fullmatch(r"[-+]?[\d.]+|true|false", value.lower()):
        yield f"{key}={value}: {key} is a group; give the name of one of its files, not a number or truth value"
    elif is_group and (value == "null" or (without and key not in _OPTIONAL)):
        off = next((name for name in ("none", "never") if name in groups[key]), None)
        remedy = f"to use none, set {key}={off}" if off else "every run needs it; choose one of the group's files"
        if without:
            yield f"~{key}: a run cannot be without this group; {remedy}"
        else:
            yield f"{key}=null: a group cannot be null; {f'to use none, write ~{key}' if key in _OPTIONAL else remedy}"
    elif is_group and key not in _SEVERAL and re.fullmatch(r"\[.*,.*\]", value, re.DOTALL):
        yield f"{key}: a run has one {key}, but the list names several; choose one"


def is_sweep(arguments: Iterable[str]) -> bool:
    return any(argument.startswith("sweep=") for argument in arguments)


def refuse_misuse(arguments: Sequence[str]) -> None:
    """Refuses what no command line may hold, whether it starts a run, several runs or a sweep: passwords and API keys,
    because Hydra's own messages would repeat them, and the configuration of several runs.
    """
    if mistakes := [mistake for argument in arguments for mistake in _secrets_of(argument)]:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    flags = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    if strange := [flag for flag in flags if flag not in _FLAGS and not is_sweep(arguments)]:
        name = strange[0][2:].replace("-", "_")
        remedies = {
            "dry_run": "it lists the runs of sweep=NAME; check=true makes all checks of one run",
            "config": "an option of your own is a file in a folder that 'hydra.searchpath=[file://FOLDER]' names",
        }
        form = f"settings are written as key=value, without dashes; {name}=... tells the full name of the key"
        raise ConfigError([f"{strange[0]}: {remedies.get(name, form)}"])
    shown = next((a for a in arguments if a.partition("=")[0] in ("--cfg", "-c", "--info", "-i")), None)
    if shown and (is_sweep(arguments) or {"-m", "--multirun"} & set(arguments)):
        remedy = "give one value for each key, without -m and sweep="
        raise ConfigError([f"{shown}: Hydra prints the configuration of one run only; {remedy}"])


def _secrets_of(argument: str) -> Iterator[str]:
    key, equals, value = argument.partition("=")
    has_key = bool(equals and re.fullmatch(r"[+~]*[\w./-]+", key))
    place, text = (key.lstrip("+~"), value) if has_key else ("an argument", argument)
    parts = re.split(r"[\[\],'\" ]+", text)
    if place.endswith("key_variable"):
        variables = parts
    else:
        for part in [text, *parts] if has_key else [text]:
            yield from secrets_in(part, place)
        variables = re.findall(r"key_variable['\"]?\s*[=:]\s*['\"]?([^\s,}'\"]*)", text)  # in a dictionary
        place = f"{place}.key_variable" if has_key else "key_variable"
    for variable in variables:
        if variable not in ("", "null", "???") and not variable.startswith("${"):
            yield from secrets_in(variable, place)


def took_no_job(error: BaseException) -> bool:
    """Whether an error means that Slurm refused a job, for example because of an unknown account, or is not there."""
    refused = type(error).__module__.startswith("submitit.") and type(error).__name__ == "FailedJobError"
    return refused or (isinstance(error, RuntimeError) and 'Could not detect "srun"' in str(error))


def composed(overrides: Sequence[str], folder: Path, read: dict[str, bytes] | None = None) -> DictConfig:
    """The configuration of a run, not yet checked. Raises a ConfigError that names the override at fault."""
    try:
        return compose_config(overrides, folder, read=read)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, overrides, folder) from error


def build_alone(key: str, overrides: Sequence[str], folder: Path) -> Any:
    """Composes the configuration, and checks and builds only its part under ``key``, such as ``env``. Raises a
    ConfigError.
    """
    cfg = composed(overrides, folder)
    part = OmegaConf.create({key: OmegaConf.to_container(cfg, resolve=True)[key]})  # type: ignore[index, call-overload]
    check_config(part)
    return build(part, key)
