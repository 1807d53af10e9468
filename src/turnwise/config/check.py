"""Checks a configuration before anything is loaded, and reports all mistakes at once, with the nearest valid names."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.execution_rules import impossible_execution
from turnwise.config.hints import meant
from turnwise.config.part_rules import impossible_combinations
from turnwise.config.schema import ConfigError, RunConfig, build_node, first_line
from turnwise.config.secrets import secrets_in
from turnwise.config.signature import Signature, TargetError, imports_torch, signature_of
from turnwise.config.sizes import too_large
from turnwise.config.trainer import impossible_trainer, lost_checkpoints
from turnwise.config.values import bad_name, unusable_values

_HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_convert_", "_recursive_"}
_UNSET = "???"
_NEEDED = ("env", "data", "states", "gate", "rollout", "loss", "update", "policy", "engine", "trainer", "eval")


_Waiting = tuple[dict[str, Any], str, Signature]  # settings, path and signature of a part that is not built yet


def check_config(cfg: DictConfig, overrides: Sequence[str] | None = None, refused: bool = False) -> None:
    """Refuses a configuration that cannot run.

    The settings of every part with a ``_target_``, at any depth, are compared with the signature of its constructor.
    This finds unknown and missing parameters, wrong types and wrong ``Literal`` values. A part that is a dataclass of
    Turnwise is built once, so that its own range checks run. Parts that cannot work together are reported too.

    Importing torch takes two seconds. Therefore, if ``overrides`` are known, a part that needs torch is built only if
    an override names it or if there is no other mistake. A part that no override names has the values of the
    configuration files.

    Args:
        overrides: the overrides on the command line, or None if they are not known; then every part is built.
        refused: whether the caller has already found a mistake.

    Raises:
        ConfigError: the configuration has a mistake. The error lists all mistakes.
    """
    try:
        tree: Any = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError([f"{error.full_key or 'config'}: {first_line(error)}"]) from error
    if secrets := list(secrets_in(tree)):  # reported alone, because other messages repeat values
        raise ConfigError(secrets)
    mistakes = [*_unknown_or_missing(tree), *bad_name(tree.get("name"))]
    mistakes += [f"{key}: this key has no value; set {key}=..." for key in sorted(OmegaConf.missing_keys(cfg))]
    slow: list[_Waiting] = []
    mistakes += _walk(tree, "", slow)
    reported = {mistake.split(":")[0] for mistake in mistakes}
    later = impossible_trainer(tree) + lost_checkpoints(tree) + too_large(tree) + impossible_combinations(tree)
    later += impossible_execution(tree)
    mistakes += [mistake for mistake in later if mistake.split(":")[0] not in reported]
    keys = None if overrides is None else [override.lstrip("+~").partition("=")[0] for override in overrides]
    for part in sorted(slow, key=lambda part: not _named(part[1], keys)):
        if _named(part[1], keys) or not (mistakes or refused):
            mistakes += _ranges(*part)
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))  # two checks may report the same mistake


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean 'x'?`` for the most similar known name, or the list of all names if none is similar."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; choose one of {', '.join(names)}" if names else "; leave out this key"


def _unknown_or_missing(tree: Mapping[str, Any]) -> list[str]:
    """Reports top-level keys that nothing reads (for example from ``+key=...``), parts that every run needs and this
    one lacks, and loggers and callbacks without a ``_target_``.
    """
    known = {field.name for field in fields(RunConfig)}
    extra = [str(key) for key in tree if key not in known]
    own = {str(key): value for key, value in tree.items() if key in known}
    mistakes = [f"{key}: there is no key '{key}'{meant(key, own)}" for key in extra]
    mistakes += [
        f"{key}: every run needs this part; leave out ~{key} or {key}=null"
        for key in _NEEDED
        if "callbacks" in own and own.get(key) is None  # a configuration without callbacks is only a part of a run
    ]
    for group in ("logger", "callbacks"):
        for name, part in (own.get(group) or {}).items():
            if part and not (isinstance(part, Mapping) and "_target_" in part):
                mistakes.append(f"{group}.{name}: must be a part with a _target_, or null for none; got {part!r}")
    return mistakes


def _named(path: str, keys: Sequence[str] | None) -> bool:
    """Returns whether an override key sets the part at ``path``, a key inside this part, or a group that contains it."""
    if keys is None:
        return True
    return any(f"{path}.".startswith(f"{key}.") or key.startswith(f"{path}.") for key in keys)


def _walk(node: Any, path: str, slow: list[_Waiting]) -> list[str]:
    """Returns the mistakes of a node of the configuration and of all nodes below it. Parts that need torch are added to
    ``slow`` instead of being built.
    """
    mistakes: list[str] = []
    for key, child in _children(node):
        mistakes += _walk(child, f"{path}.{key}" if path else str(key), slow)
    if isinstance(node, Mapping) and "_target_" in node:
        mistakes += _check_call(node, path, not mistakes, slow)
    return mistakes


def _children(node: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, list):
        yield from enumerate(node)


def _check_call(node: Mapping[str, Any], path: str, sound: bool, slow: list[_Waiting]) -> list[str]:
    target = str(node["_target_"])
    try:
        signature = signature_of(target)
    except TargetError as error:
        return [f"{path}._target_: {error}"]
    given = {key: value for key, value in node.items() if key not in _HYDRA_KEYS}
    mistakes = [*_names(given, signature, path, partial=bool(node.get("_partial_"))), *unusable_values(node, path)]
    reported = {mistake.split(":")[0] for mistake in mistakes}
    for name, value in given.items():
        parameter = signature.parameters.get(name) if f"{path}.{name}" not in reported else None
        if parameter is not None and value != _UNSET and not matches(value, parameter.annotation):
            mistakes.append(f"{path}.{name}: expected {describe(parameter.annotation)}, got {value!r}")
    ours = target.startswith("turnwise.") and signature.is_dataclass
    if sound and ours and _UNSET not in given.values():
        wrong = {mistake.split(":")[0].rpartition(".")[2] for mistake in mistakes}
        later = [name for name, p in signature.parameters.items() if p.required and node.get("_partial_")]
        kept = {key: value for key, value in node.items() if str(key) not in wrong and key != "_partial_"}
        given = dict.fromkeys(later) | kept
        if imports_torch(target):
            slow.append((given, path, signature))
        else:
            mistakes += _ranges(given, path, signature)
    return mistakes


def _ranges(node: dict[str, Any], path: str, signature: Signature) -> list[str]:
    """Builds a part from its settings ``node`` and returns the mistakes that the part's own checks find.

    If a value is refused, the part is built again without that value, so that every mistake is found. Parameters that
    only the program can supply are None here.
    """
    mistakes: list[str] = []
    while all(name in node for name, parameter in signature.parameters.items() if parameter.required):
        try:
            build_node(node, path)
            break
        except ConfigError as error:
            refused = [key for key in node if re.search(rf"\b{re.escape(key)}\b", str(error).removeprefix(f"{path}: "))]
            mistakes += error.mistakes
        if not refused:
            break
        del node[refused[0]]
    return mistakes


def _names(given: Mapping[Any, Any], signature: Signature, path: str, partial: bool) -> Iterator[str]:
    if not signature.accepts_any:
        for name in given.keys() - signature.parameters.keys():
            if isinstance(name, str):
                hint = suggest(name, signature.parameters)
            else:  # YAML reads the unquoted words on, off, yes and no as true and false
                hint = "; YAML reads an unquoted on, off, yes or no as true or false, so quote the key or rename it"
            yield f"{path}.{name}: {signature.name} has no such parameter{hint}"
    if not partial:
        for name, parameter in signature.parameters.items():
            if parameter.required and name not in given:
                yield f"{path}.{name}: {signature.name} requires this parameter; set {path}.{name}=..."


def matches(value: Any, annotation: Any) -> bool:
    """Returns whether a value from a YAML file fits a parameter's type annotation. A node with a ``_target_`` fits any
    annotation.
    """
    if annotation is Any or (isinstance(value, Mapping) and "_target_" in value):
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return any(value == allowed and type(value) is type(allowed) for allowed in arguments)
    if origin in (Union, types.UnionType):
        return any(matches(value, argument) for argument in arguments)
    if origin is not None or annotation in (list, tuple, set, dict, Sequence, Mapping):
        return _matches_container(value, origin or annotation, arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is Path:
        return isinstance(value, str)
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def _matches_container(value: Any, kind: Any, arguments: tuple[Any, ...]) -> bool:
    if kind in (dict, Mapping):
        inner = arguments[1] if len(arguments) == 2 else Any
        return isinstance(value, Mapping) and all(matches(item, inner) for item in value.values())
    if kind in (list, tuple, set, Sequence):
        if not isinstance(value, list):
            return False
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            pairs = zip(value, arguments, strict=False)
            return len(value) == len(arguments) and all(matches(item, inner) for item, inner in pairs)
        inner = arguments[0] if arguments else Any
        return all(matches(item, inner) for item in value)
    return True


def describe(annotation: Any) -> str:
    """Returns a type annotation in words, for example ``float``, ``one of keep, drop`` or ``int or null``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments)
    if annotation is None or annotation is type(None):
        return "null"
    if origin in (list, tuple, Sequence, set) or annotation in (list, tuple, Sequence, set):
        return "a list" + (f" of {describe(arguments[0])}" if arguments else "")
    if origin in (dict, Mapping) or annotation in (dict, Mapping):
        return "a mapping"
    if annotation is Path:
        return "a path"
    return getattr(annotation, "__name__", str(annotation))
