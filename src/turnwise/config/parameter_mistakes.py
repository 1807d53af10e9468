"""Checks the names, types and ranges of the parameters of a part against the constructor of the part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.config.build_part import build_node
from turnwise.config.hints import suggest
from turnwise.config.schema import ConfigError
from turnwise.config.signature import Signature, TargetError, signature_of
from turnwise.config.type_annotations import describe, matches
from turnwise.config.unusable_values import unusable_values

_HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_convert_", "_recursive_"}
_UNSET = "???"


def parameter_mistakes(node: Mapping[str, Any], path: str, sound: bool) -> list[str]:
    """Returns the mistakes in the parameters of the part ``node``. ``sound`` says whether the parts inside ``node`` are
    free of mistakes. If so, and if ``node`` is a dataclass of Turnwise, it is also built, without the parameters that
    are already reported, so that its own range checks run.
    """
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
        mistakes += _range_mistakes(dict.fromkeys(later) | kept, path, signature)
    return mistakes


def _range_mistakes(node: dict[str, Any], path: str, signature: Signature) -> list[str]:
    """Builds a part from its settings ``node`` and returns the mistakes in its parameters that the part's own checks
    find.

    If a value is refused, the part is built again without that value, so that every mistake is found. Parameters that
    only the program can supply are None in this check.
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
