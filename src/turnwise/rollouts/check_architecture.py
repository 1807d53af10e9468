"""Classifies a model architecture as exact, refused or wrong.

An exact architecture is one whose packed trees give the same loss, gradients and log-probs as separate forward passes
over their paths (within rounding). A refused architecture is one that the project does not train. A wrong one is
accepted by the probe, although its packed trees give other numbers than the separate passes.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from turnwise.models.attention import use_tree_attention
from turnwise.models.head import Head
from turnwise.models.policy import with_adapter
from turnwise.models.random_models import filled, small_config, small_model, windowed
from turnwise.rollouts.against_paths import Distance, against_paths
from turnwise.rollouts.probe import probe

SAID = 240  # greatest length of a reason in characters
RANK, ALPHA = 4, 8


@dataclass(frozen=True, slots=True)
class FamilyVerdict:
    """The verdict on one architecture, which is one row of the table of architectures.

    Attributes:
        family: the model type, and whether its layers were given an attention window.
        verdict: ``exact``, ``refused`` or ``wrong``, or ``traceback`` if an unexpected error occurred.
        lora: the verdict for the model with LoRA; empty if the model without LoRA is not exact.
        why: the reason in one line; may be empty.
        loss, gradient, sampled: the distances of ``against_paths.Distance``, each the larger of the values with and
            without LoRA; nan if nothing was measured.
    """

    family: str
    verdict: str
    lora: str = ""
    why: str = ""
    loss: float = float("nan")
    gradient: float = float("nan")
    sampled: float = float("nan")


def rows_of(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the rows of a model type in the table of architectures: each row's name, and its changes to the model's
    configuration.

    The first row is the model type as it is. If its configuration can have an attention window but has none, a second
    row is the model type with a window.
    """
    rows: list[tuple[str, dict[str, Any]]] = [(kind, {})]
    try:
        changes = windowed(small_config(kind))
        if changes is not None:
            small_config(kind, **changes)
            rows.append((f"{kind}, with a window", changes))
    except Exception:  # a model that cannot be built is refused later, when it is judged
        return rows[:1]
    return rows


def judge_family(kind: str, name: str, changes: dict[str, Any]) -> FamilyVerdict:
    """Returns the verdict on a model type: builds a small random model, probes it as a run would, and compares packed
    trees with separate paths.

    The comparison is made without LoRA and then with LoRA.
    """
    try:
        model = small_model(small_config(kind, **changes))
    except Exception as error:  # the model's class may raise anything
        return FamilyVerdict(name, "refused", why=_cut(f"not built from a small configuration ({_said(error)})"))
    try:
        Head(use_tree_attention(model))
    except ValueError as error:
        return FamilyVerdict(name, "refused", why=_cut(str(error)))
    if (found := probe(model)) is not None:
        return FamilyVerdict(name, "refused", why=_cut(str(found)))
    try:
        plain = against_paths(model, copy=False)
    except Exception:
        return FamilyVerdict(name, "traceback", why=_cut(traceback.format_exc(limit=-1)))
    if not plain.exact:
        return _of(name, "wrong", "", "without adapters", plain)
    adapted: Any = None
    try:
        adapted = filled(with_adapter(model, RANK, ALPHA, 0.0))
        refused = probe(adapted)
        why = "" if refused is None else str(refused)
    except Exception as error:  # peft may raise anything for a layer that it does not know
        why = _said(error)
    if why:
        return _of(name, "exact", "refused", _cut(f"LoRA: {why}"), plain)
    try:
        both = against_paths(adapted, copy=True)
        if not both.exact and (live := against_paths(adapted, copy=False)).exact:
            # If the forward pass of a layer does not use the layer's weight, the adapter of this layer is never
            # trained. Merging the adapter of a run then does not change this layer.
            return _of(
                name, "exact", "refused", "LoRA: a merged copy applies an adapter that the model does not", plain, live
            )
    except Exception:
        return FamilyVerdict(name, "traceback", why=_cut(traceback.format_exc(limit=-1)))
    return _of(name, "exact" if both.exact else "wrong", "exact" if both.exact else "wrong", "", plain, both)


def _of(name: str, verdict: str, lora: str, why: str, *measured: Distance) -> FamilyVerdict:
    largest = {key: max(getattr(found, key) for found in measured) for key in ("loss", "gradient", "sampled")}
    return FamilyVerdict(name, verdict, lora, why, **largest)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _cut(text: str) -> str:
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= SAID else line[: SAID - 3] + "..."
