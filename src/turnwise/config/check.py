"""Checks a configuration before torch is loaded, and reports all mistakes at once, with the nearest valid names.

The keys of a part are the parameters of its constructor, and the annotations of these parameters (for example
``Annotated[float, Gt(0)]``) are the allowed values: :mod:`pydantic` compares both with the configuration. Parts whose
import needs torch are left out until torch is loaded; until then, Hydra compares their keys with those of their file.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from types import UnionType
from typing import Any, Union, get_args, get_origin
from urllib.parse import urlsplit

from hydra._internal.utils import _locate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter, ValidationError

from turnwise.config.conflicts import Settings, conflicts
from turnwise.config.schema import ConfigError, RunConfig, build_node
from turnwise.config.settings import CheckpointSettings, TrainerSettings
from turnwise.errors import first_line, in_own_code

_NEEDED = ("env", "data", "states", "gate", "rollout", "loss", "update", "policy", "engine", "trainer", "eval")
_OF_TORCH = ("lightning", "turnwise.engines", "turnwise.models", "turnwise.training")  # modules that import torch
_LIGHT = ("turnwise.engines.engine",)  # modules below these that do not
_IN_PLACE_OF = {  # a part of Lightning -> the settings of it that a run may change
    "lightning.pytorch.Trainer": TrainerSettings,
    "lightning.pytorch.callbacks.ModelCheckpoint": CheckpointSettings,
}
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
_UNSET = "???"

# matches //user:password@ in an address; the password may contain a slash
_USER = re.compile(r"//[^\s/?#]*@|//[^\s/@]*:(?!\d+(?:/|$))[^\s@]*@")
_ADDRESS = re.compile(r"(?:^|[._])(?:url|retriever)$")  # keys whose values are addresses
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


def check_config(cfg: DictConfig) -> None:
    """Refuses a configuration that cannot run. The ConfigError lists all mistakes.

    Called again after torch has been loaded, it also checks the parts that need torch.
    """
    try:
        tree: Any = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError([f"{error.full_key or 'config'}: {first_line(error)}"]) from error
    if secrets := list(secrets_in(tree)):  # reported alone, because other messages repeat values
        raise ConfigError(secrets)
    mistakes = list(_check_top_level(tree))
    mistakes += [f"{key}: this key has no value; set {key}=..." for key in sorted(OmegaConf.missing_keys(cfg))]
    mistakes += _check_node(tree, "")
    reported = {mistake.split(":")[0] for mistake in mistakes}
    mistakes += [mistake for mistake in conflicts(tree) if mistake.split(":")[0] not in reported]
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))


def _check_top_level(tree: Mapping[str, Any]) -> Iterator[str]:
    known = {field.name for field in dataclasses.fields(RunConfig)}
    own = {str(key): value for key, value in tree.items() if key in known}
    for key in tree:
        if key not in known:
            yield f"{key}: there is no key '{key}'{meant(key, own)}"
    if "callbacks" in own:  # a configuration without callbacks is only a part of a run
        for key in _NEEDED:
            if own.get(key) is None:
                yield f"{key}: every run needs this part; do not remove it with ~{key} or {key}=null"
    for group in ("logger", "callbacks"):
        for name, part in (own.get(group) or {}).items():
            if part and not (isinstance(part, Mapping) and "_target_" in part):
                yield f"{group}.{name}: must be a part with a _target_, or null for none; got {part!r}"


def _check_node(node: Any, path: str) -> list[str]:
    children = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    mistakes: list[str] = []
    for key, child in children:
        place = f"{path}.{key}" if path else str(key)
        if isinstance(child, float) and not math.isfinite(child):
            mistakes.append(f"{place}: must be a finite number, got {child}")
        elif isinstance(child, str) and not child.strip() and not path.startswith(("logger", "paths")):
            # usually from a shell variable that was not set
            mistakes.append(f"{place}: the value is empty; give a value, or {place}=null if this setting may be null")
        elif isinstance(child, str) and _ADDRESS.search(place) and not _has_port(child):
            mistakes.append(f"{place}: the address needs a valid host, and a port from 1 to 65535")
        mistakes += _check_node(child, place)
    if isinstance(node, Mapping) and "_target_" in node:
        mistakes += _check_part(node, path, mistakes)
    return mistakes


def _has_port(address: str) -> bool:
    try:
        return urlsplit(address).port != 0
    except ValueError:
        return False


def _check_part(node: Mapping[str, Any], path: str, within: list[str]) -> Iterator[str]:
    target = str(node["_target_"])
    slow = target.startswith(_OF_TORCH) and "torch" not in sys.modules  # a run checks again when it has imported torch
    if slow and not target.startswith(_LIGHT) and target not in _IN_PLACE_OF:
        return
    try:
        part = _IN_PLACE_OF.get(target) or _located(target)
        parameters = inspect.signature(part).parameters
    except Exception as error:  # whatever the import of a module may raise
        yield f"{path}._target_: {first_line(error)}"
        return
    values = {
        key: value for key, value in node.items() if key not in ("_target_", "_partial_", "_convert_", "_recursive_")
    }
    hints = _annotations(part)
    reported = {mistake.split(":")[0] for mistake in within}
    sound = not within
    for name, value in values.items():
        if name not in parameters:
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                sound = False
                yield f"{path}.{name}: {target.rpartition('.')[2]} has no such parameter{suggest(str(name), parameters)}"
        elif f"{path}.{name}" not in reported and (mistake := _check_type(value, hints.get(name, Any))):
            sound = False
            yield f"{path}.{name}: {mistake}, got {value!r}"
    for name, parameter in parameters.items():
        several = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        needed = parameter.default is parameter.empty and not several and not node.get("_partial_")
        if needed and name not in values:
            sound = False
            yield f"{path}.{name}: {target.rpartition('.')[2]} requires this parameter; set {path}.{name}=..."
    if sound and hasattr(part, "__post_init__") and not node.get("_partial_") and _UNSET not in values.values():
        try:  # checks that concern several parameters are in the part itself
            build_node(node, path)
        except ConfigError as error:
            yield from error.mistakes


def _located(target: str) -> Any:
    """The class or function of this name. An ImportError says why there is none."""
    package, module, name = target.partition(".")[0], *target.rpartition(".")[::2]
    if package not in sys.modules and find_spec(package) is None:  # Hydra's message would not name the remedy
        raise ImportError(f"there is no module '{package}'; for one of your own, start with PYTHONPATH=its folder")
    try:
        return _locate(target)  # get_object of hydra.utils would also print its error
    except ImportError as error:
        if module in sys.modules:
            known = [each for each, value in vars(sys.modules[module]).items() if callable(value)]
            raise ImportError(f"{module} has no '{name}'{suggest(name, known)}") from None
        cause = error.__cause__ or error
        raise ImportError(in_own_code(cause) or first_line(cause)) from cause


def _annotations(part: Any) -> dict[str, Any]:
    if inspect.isclass(part) and dataclasses.is_dataclass(part):
        owners = [
            (vars(base).get("__annotations__", {}), vars(sys.modules[base.__module__]))
            for base in reversed(part.__mro__)
        ]
    else:
        function = part.__init__ if inspect.isclass(part) else part
        owners = [(getattr(function, "__annotations__", {}), getattr(function, "__globals__", {}))]
    hints: dict[str, Any] = {}
    for own, scope in owners:
        for name, annotation in own.items():
            try:
                hints[name] = eval(annotation, scope) if isinstance(annotation, str) else annotation
            except (NameError, AttributeError, TypeError):
                hints[name] = Any
    return hints


def _check_type(value: Any, hint: Any) -> str | None:
    if hint is Any or value == _UNSET or _holds_part(value):
        return None
    if get_origin(hint) in (Union, UnionType):  # pydantic would make a dataclass from a mapping
        hint = Union[tuple(kind for kind in get_args(hint) if not dataclasses.is_dataclass(kind))]  # noqa: UP007
    elif dataclasses.is_dataclass(hint):
        return "must be a part with a _target_"
    try:
        adapter = TypeAdapter(hint, config=_STRICT)
    except Exception:  # a type that pydantic cannot check
        return None
    try:
        adapter.validate_json(json.dumps(value))  # as JSON, a list may become a tuple and a text a path
    except ValidationError as error:
        messages = dict.fromkeys(
            "must be a part with a _target_" if one["type"] == "needs_python_object" else one["msg"]
            for one in error.errors()
        )
        return " or ".join(messages).replace("Input should", "must")
    except (TypeError, ValueError):
        return None
    return None


def _holds_part(value: Any) -> bool:
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return (isinstance(value, Mapping) and "_target_" in value) or any(map(_holds_part, children))


# key of Turnwise -> names of the same setting in TRL, verl, transformers and other libraries
_ELSEWHERE = {
    "update.learning_rate": "lr",
    "update.clip_norm": "max_grad_norm grad_clip",
    "update.recompute": "gradient_checkpointing",
    "iterations": "epochs num_train_epochs total_epochs max_steps",
    "trainer.devices": "num_processes n_gpus_per_node",
    "rollout.states": "batch_size train_batch_size per_device_train_batch_size gradient_accumulation_steps",
    "rollout.max_length": "max_prompt_length max_seq_length",
    "rollout.sampling.max_tokens": "max_new_tokens max_completion_length max_response_length",
    "allocator.group_size": "num_generations n",
    "advantage.scale": "scale_rewards",
    "loss.kl_beta": "beta kl_coef kl_loss_coef",
    "loss.clip_high": "epsilon clip_ratio",
    "policy.model": "model model_name_or_path",
    "policy.dtype": "bf16",
    "policy.lora.r": "lora_r lora_rank",
    "data.file": "dataset dataset_name train_files",
    "eval.every": "eval_steps",
    "eval.items": "ood",
    "engine": "use_vllm",
    "logger": "report_to",
    "callbacks.checkpoint": "save_steps save_freq",
    "paths.out": "output_dir",
    "method": "algorithm algo",
    "env": "environment",
    "advantage": "adv_estimator",
    "check": "dry_run",
}
HERE = {word: key for key, words in _ELSEWHERE.items() for word in words.split()}
NOTES = {
    "iterations": " It counts iterations, not passes over the data.",
    "engine": " engine=vllm samples from a vLLM server that you start (docs/engines.md).",
    "logger": " Every run logs to W&B, offline at first: logger.wandb.offline=false sends it, ~logger leaves it out.",
    "callbacks.checkpoint": " A run saves itself after each iteration, and the same command resumes it.",
}


def meant(word: str, tree: Mapping[str, Any], holder: str = "") -> str:
    """What follows "there is no key ``word``" in a message: the key that was probably meant, or all keys of the group.
    ``tree`` is the configuration without the unknown key, ``holder`` the dotted key of the group in which it was looked
    for.
    """
    plain = word.lower().replace("-", "_")
    if known := HERE.get(plain, ""):
        above, _, last = known.rpartition(".")
        if holder and last in _at(tree, holder):  # such as predictor.lr
            return f"; did you mean '{holder}.{last}'?"
        if last in _at(tree, above):
            return f"; did you mean '{known}'?{NOTES.get(known, '')}"
        return f"; this setting is called '{known}' here and belongs to a part that this run does not use"
    names = [str(name) for name in _at(tree, holder) if not str(name).startswith("_")]
    if not get_close_matches(word, names, n=1, cutoff=0.6):
        leaves = [key for key in Settings(tree) if "." in key and "._" not in key]
        last_words = sorted({key.rpartition(".")[2] for key in leaves})
        near = [plain] if plain in last_words else get_close_matches(plain, last_words, n=1, cutoff=0.8)
        if same := [key for key in leaves if near and key.rpartition(".")[2] == near[0]]:
            return f"; did you mean {' or '.join(repr(key) for key in sorted(same, key=len)[:3])}?"
    return suggest(word, names)


def _at(tree: Mapping[str, Any], dotted: str) -> Mapping[str, Any]:
    node: Any = tree
    for key in dotted.split(".") if dotted else ():
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the known name closest to ``name``, or a list of all if none is similar."""
    names = sorted(known)
    in_lower_case = {each.lower(): each for each in names}
    if near := get_close_matches(name.lower(), in_lower_case, n=1, cutoff=0.6):
        return f"; did you mean '{in_lower_case[near[0]]}'?"
    return f"; choose one of {', '.join(names)}" if names else "; leave out this key"


def secrets_in(value: Any, place: str = "") -> Iterator[str]:
    """A message for each address that holds a user or a password, and for each ``key_variable`` that is not the name of
    an environment variable, among the values below the key ``place``. The message does not repeat the value.
    """
    if isinstance(value, Mapping | list):
        for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from secrets_in(child, f"{place}.{key}" if place else str(key))
    elif not isinstance(value, str):
        return
    elif place.endswith("key_variable"):
        if not _VARIABLE.fullmatch(value):
            yield (
                f"{place}: give the NAME of an environment variable (capital letters, digits and _), not the key itself; "
                "export the key under a name such as TURNWISE_JUDGE_KEY and give that name"
            )
    elif _USER.search(value) or (_ADDRESS.search(place) and "@" in value.split("/")[0]):
        yield (
            f"{place}: the address contains a user name or a password, which would be saved with the run; leave out both, "
            "and put the key into the environment variable that key_variable names"
        )
