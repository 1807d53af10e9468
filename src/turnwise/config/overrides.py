"""Everything about a command line: explains Hydra's errors with the nearest valid names, refuses overrides that Hydra
would misread, launchers that cannot start and secrets, and makes the text of ``--help`` (Hydra's own takes a second).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException, ValidationError
from yaml import YAMLError

from turnwise.config.check import (
    ADDRESS,
    VARIABLE,
    check_config,
    credentials,
    holds_user,
    known_elsewhere,
    meant,
    no_variable,
    suggest,
)
from turnwise.config.schema import ConfigError, build, compose_config, small_options
from turnwise.files import read_yaml

MOST = 10_000  # largest number of runs that one command may start

_DEEP = 500  # largest number of brackets in one argument
_OF_HYDRA = {  # settings of Hydra -> what to do instead
    "hydra.run.dir": "a run creates its own folder; name it with paths.out=...",
    "hydra.job.chdir": "a run's paths are relative to the folder in which the run is started; leave out this setting",
    "hydra.mode": "the argument -m starts several runs; leave out this setting",
}
_SEVERAL = ("callbacks", "logger")  # groups from which a run may choose several options
_OPTIONAL = (*_SEVERAL, "cluster", "debug")  # groups from which a run may choose no option
_NAMED = re.compile(r"key_variable['\"]?\s*[=:]\s*(?P<value>[^\s,}]*)")
# Hydra's name of a launcher -> the module and the package that provide it
_PLUGINS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", "hydra-joblib-launcher"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", "hydra-submitit-launcher"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "hydra-submitit-launcher"),
    "ray": ("hydra_plugins.hydra_ray_launcher", "hydra-ray-launcher"),
}
_NUMBERS = """
    RANK LOCAL_RANK NODE_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT JSM_NAMESPACE_RANK
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS
"""  # environment variables with which a launcher tells each process its rank and the number of processes
_LOOKS_ONLY = {"--dry-run", "--cfg", "-c", "--help", "-h", "--info", "-i"}


def explain(error: Exception, arguments: Sequence[str], folder: Path) -> ConfigError:
    """An error that explains why Hydra refused the ``arguments`` of a command line.

    Refused overrides are removed one by one until Hydra can compose a configuration, which is then checked, so that one
    message names all mistakes. The message of ``error`` (Hydra's own) is used if no override caused it.
    """
    if isinstance(error, OverrideParseException):
        return ConfigError(
            [f"{error.override}: this is not of the form key=value; put a value with special characters in quotes"]
        )
    if isinstance(error, YAMLError):
        return ConfigError([f"a configuration file is not YAML: {_line(error)}"])
    overrides = [argument for argument in arguments if ("=" in argument or argument[0] == "~") and argument[0] != "-"]
    parsed = OverridesParser.create().parse_overrides(overrides)
    kept = [one for override in parsed if (one := _one_of_sweep(override, str(error), folder)) is not None]
    refused: list[tuple[Override, Exception]] = []
    cfg, in_a_file = None, None
    if (blamed := _blame(error, kept)) is not None:  # if kept, it would make the first attempt below fail again
        kept.remove(blamed)
        refused.append((blamed, error))
    while cfg is None:
        try:
            cfg = compose_config([override.input_line or "" for override in kept], folder)
        except (HydraException, OmegaConfBaseException) as refusal:
            blamed = _blame(refusal, kept)
            if blamed is None:
                in_a_file = refusal
                break
            kept.remove(blamed)
            refused.append((blamed, refusal))
    mistakes = [_message(override, refusal, cfg, folder) for override, refusal in refused]
    if in_a_file is not None:
        mistakes.append(_in_a_file(in_a_file, folder))
    elif cfg is not None:
        try:
            check_config(cfg)
        except ConfigError as more:
            mistakes += more.mistakes
    return ConfigError(mistakes or [_line(error)])


def _one_of_sweep(override: Override, complaint: str, folder: Path) -> Override | None:
    """``override`` with a single value: of a sweep, the value that Hydra's ``complaint`` names, else its first value.
    None if the sweep has no values.
    """
    if not override.is_sweep_override():
        return override
    key, given = override.get_key_element(), override.value()
    if isinstance(given, Glob):
        values = given.filter(group_options(folder).get(key, []))
    else:
        values = swept(override)
    lines = [f"{key}={value}" for value in values]
    missing = [f"'{line.replace('=', '/', 1)}'" in complaint for line in lines]  # an option of a group without a file
    named = [line for line, gone in zip(lines, missing, strict=True) if gone or line in complaint]
    line = next(iter(named or lines), None)
    return None if line is None else OverridesParser.create().parse_override(line)


def swept(override: Override) -> list[str]:
    """The first ``MOST`` + 1 values of a sweep; none for an interval, or for a range whose step is 0."""
    if not override.is_discrete_sweep():
        return []
    try:
        return list(islice(override.sweep_string_iterator(), MOST + 1))
    except ValueError:  # a range whose step is 0
        return []


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
    given, key = override.input_line, override.key_or_group
    if isinstance(error, MissingConfigException):
        return f"{given}: {_no_option(key, str(override.value()), folder)}"
    cause = error.__cause__ or error
    if isinstance(cause, ValidationError | InterpolationResolutionError):
        return f"{given}: {_line(cause)}"
    if cfg is None:
        return f"{given}: there is no key '{key}'"
    *parents, last = key.lstrip("+~").split(".")
    if parents[:1] == ["hydra"]:  # cfg does not hold Hydra's own settings
        return f"{given}: {_line(error)}"
    depth = 0
    while depth < len(parents) and isinstance(OmegaConf.select(cfg, ".".join(parents[: depth + 1])), DictConfig):
        depth += 1
    holder = ".".join(parents[:depth])
    node = OmegaConf.select(cfg, holder) if holder else cfg
    wrong = [*parents, last][depth]
    if wrong in node:
        place = f"{holder}.{wrong}" if holder else wrong
        if depth < len(parents):
            return f"{given}: {place} is a single value and has no keys; set {place}=..."
        return f"{given}: {_line(error)}"  # for example +key=... for a key that exists already
    where = f"{holder} has no key '{wrong}'" if holder else f"there is no key '{wrong}'"
    word, above = (last, "") if known_elsewhere(last) and not known_elsewhere(wrong) else (wrong, holder)
    return f"{given}: {where}{meant(word, OmegaConf.to_container(cfg), above)}"  # type: ignore[arg-type]


def _in_a_file(error: Exception, folder: Path) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        asking = re.compile(rf"^ *- (override )?/?{re.escape(group)}: *{re.escape(option)}\b", re.MULTILINE)
        files = [path for path in sorted(folder.rglob("*.yaml")) if asking.search(path.read_text(encoding="utf-8"))]
        where = f"{files[0].relative_to(folder.parent)}: " if files else ""
        return where + _no_option(group, option, folder)
    full_key = getattr(error.__cause__ or error, "full_key", None)
    return f"{full_key}: {_line(error)}" if full_key else _line(error)


def _no_option(group: str, option: str, folder: Path) -> str:
    return f"{group} has no '{option}'{suggest(option, group_options(folder).get(group, []))}"


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


def refuse_misuse(arguments: Sequence[str], folder: Path) -> None:
    """Refuses what no command line may hold, whether it starts a run, several runs or a sweep."""
    refuse_secrets(arguments)
    refuse_config_of_many(arguments)
    refuse_launcher(arguments, folder)


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
    is_group = re.fullmatch(r"\w[\w/]{0,99}", key) is not None and key in groups
    if min(map(argument.count, "[]")) > _DEEP or argument.count("{") > _DEEP:
        yield f"{argument[:40]}...: this argument is nested too deeply; flatten it, or write it into a file"
    elif key in _OF_HYDRA and equals:
        yield f"{key}: {_OF_HYDRA[key]}"
    elif key == "data.file" and value.startswith("["):
        yield f"{key}: a run reads one file; join several: python scripts/prepare_data.py A B --out all.jsonl"
    elif key == "hydra.searchpath" and (gone := [place for place in _folders(value) if not place.is_dir()]):
        yield f"hydra.searchpath: there is no folder {gone[0]}; correct it, or leave it out"
    elif re.fullmatch(r"hydra\.(launcher|sweeper)\._target_", key) and equals:
        yield f"{argument}: Hydra's plugins are chosen as groups; write hydra/launcher=NAME or hydra/sweeper=NAME"
    elif equals and (is_group or not key) and re.fullmatch(r"[-+]?[\d.]+|true|false", value.lower()):
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


def _folders(places: str) -> list[Path]:
    named = [place.strip(" '\"").removeprefix("file://") for place in places.strip("[] ").split(",")]
    return [Path(place) for place in named if "://" not in place]


def is_sweep(arguments: Iterable[str]) -> bool:
    return any(argument.startswith("sweep=") for argument in arguments)


def refuse_config_of_many(arguments: Sequence[str]) -> None:
    """Refuses to print the configuration of several runs, because Hydra prints that of one run only."""
    shown = next((a for a in arguments if a.partition("=")[0] in ("--cfg", "-c", "--info", "-i")), None)
    if shown is None:
        return
    if is_sweep(arguments):
        remedy = "sweep= starts many: --dry-run lists them, and conf/sweep/ has the overrides of each row"
    elif any(a in ("-m", "--multirun") for a in arguments):
        remedy = "leave out -m, and give one value for each key"
    else:
        return
    raise ConfigError([f"{shown}: it prints the configuration of one run; {remedy}"])


def refuse_launcher(arguments: Sequence[str], folder: Path) -> None:
    """Refuses a launcher whose package is not installed, and a Slurm launcher on a machine without Slurm."""
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith("hydra/launcher=")]
    if not given:
        return
    found = _stands_on(given[-1], folder)
    module, package = _PLUGINS.get(found, (None, ""))
    if module is not None and find_spec(module) is None:
        raise ConfigError(
            [f"hydra/launcher={given[-1]}: this needs {package}, which is not installed here; pip install {package}"]
        )
    launches = any(a in ("-m", "--multirun") for a in arguments) or is_sweep(arguments)
    if found == "submitit_slurm" and launches and not _LOOKS_ONLY & set(arguments) and shutil.which("srun") is None:
        raise ConfigError(
            [
                f"hydra/launcher={given[-1]}: srun is not on this machine's PATH, so no job can be submitted to Slurm; "
                "start the command on a login node of the cluster, or choose hydra/launcher=local_jobs"
            ]
        )


def refuse_processes(environment: Mapping[str, str]) -> None:
    """Refuses environment variables of torchrun or Slurm that are no whole number, and a rank that is not below the
    number of processes: Lightning would fail, or a process would wait for others that do not exist.
    """
    remedy = "start the run with torchrun or srun, or unset the variable to run one process"
    for name in _NUMBERS.split():
        if name in environment and not environment[name].isdecimal():
            raise ConfigError(
                [f"the environment variable {name}={environment[name]!r} is not a whole number; {remedy}"]
            )
    processes = environment.get("WORLD_SIZE", "1")
    for name, count in (("RANK", processes), ("LOCAL_RANK", environment.get("LOCAL_WORLD_SIZE", processes))):
        if int(environment.get(name, "0")) >= int(count):
            raise ConfigError(
                [
                    f"the environment variable {name}={environment[name]} must be below the number of processes, "
                    f"{count}; {remedy}"
                ]
            )


def took_no_job(error: BaseException) -> bool:
    """Whether an error means that Slurm refused a job, for example because of an unknown account."""
    return type(error).__module__.startswith("submitit.") and type(error).__name__ == "FailedJobError"


def _stands_on(name: str, folder: Path) -> str:
    for _ in range(8):  # Hydra itself refuses files that refer to each other in a circle
        path = folder / "hydra" / "launcher" / f"{name}.yaml"
        content = read_yaml(path) if path.is_file() else None
        below = content.get("defaults") if isinstance(content, dict) else None
        if not (isinstance(below, list) and below and isinstance(below[0], str)):
            break
        name = below[0]
    return name


def refuse_secrets(arguments: Iterable[str]) -> None:
    """Refuses overrides that hold a password or an API key, because Hydra's own messages would repeat them. The error
    has no part of a value.
    """
    mistakes = [mistake for argument in arguments for mistake in _in_override(argument)]
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))


def _in_override(argument: str) -> Iterator[str]:
    key, equals, value = argument.partition("=")
    place = key.lstrip("+~") if equals and re.fullmatch(r"[+~]*[\w./-]+", key) else "an argument"
    bare = ADDRESS.search(place) and any("@" in item.split("/")[0] for item in re.split(r"[\[\],'\"]+", value))
    if bare or holds_user(argument):
        yield credentials(place)
    whole = [value] if place.endswith("key_variable") else [named["value"] for named in _NAMED.finditer(argument)]
    for given in (item.strip("'\" ") for text in whole for item in text.split(",")):
        if given not in ("null", "???") and not given.startswith("${") and not VARIABLE.fullmatch(given):
            yield no_variable(place)


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


_TEXT = """\
Turnwise, turn-level reinforcement learning for language-model agents.

  python train.py                                       method=pivotrl on the shipped policy, minutes on two cores
  python train.py method=selective                      likewise sft, grpo, awpo, trace and all other methods
  python train.py method=sft seed=1 data.trajectories=100
  python train.py method=grpo policy=qwen3_4b trainer=gpu
  python train.py -m method=pivotrl,local,sft seed=0,1,2
  python train.py sweep=pivotrl_tab4                    a table of the paper, row by row
  python train.py debug=tiny method=pivotrl             a short run that checks every stage
  python train.py method=sft data.file=my.jsonl policy.model=my_model check=true    all checks of a run, and no run

The files of a run are in outputs/<name>/seed<seed>. The same command resumes the run. name=... chooses another folder;
fresh=true renames the existing folder and starts the run again.

Choose one option of each group (group=option)

{groups}

These launchers can start the runs of -m or sweep=
{launchers}

All keys of a run, with their values: python train.py method=pivotrl --cfg job"""


def help_text(folder: Path, sweeps: Sequence[str]) -> str:
    """The help text of ``train.py``, with the options of every group and the names of the sweeps."""
    found = group_options(folder) | {"sweep": sweeps}
    groups = [_wrapped(group, names) for group, names in found.items() if not group.startswith(("hydra", "at/"))]
    launchers = _wrapped("hydra/launcher", found.get("hydra/launcher", []))
    return _TEXT.format(groups="\n".join(groups), launchers=launchers)


def _wrapped(group: str, names: Sequence[str]) -> str:
    line = f"{group}: {', '.join(names)}"
    return fill(line, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
