"""Classifies a model architecture as exact, refused or wrong.

``exact``: packed trees give the same loss, gradients and log-probs as separate forward passes over the paths of the
trees, within rounding. ``refused``: a run refuses the model, or the model cannot be built from a small configuration.
``wrong``: a run accepts the model, although packed trees give other numbers than the separate passes.
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

SAID = 240  # greatest number of characters of the reason for a verdict
RANK, ALPHA = 4, 8


@dataclass(frozen=True, slots=True)
class FamilyVerdict:
    """The verdict on one architecture: one row of the table of architectures.

    Attributes:
        family: the model type, and whether its layers were given an attention window.
        verdict: ``exact``, ``refused`` or ``wrong``, or ``traceback`` if an unexpected error occurred.
        lora: the verdict for the model with LoRA; empty if the model without LoRA is not exact.
        why: the reason for a verdict other than ``exact``, without or with LoRA, in one line; may be empty.
        loss, gradient, sampled: the fields of ``against_paths.Distance``, each the larger of the values without LoRA
            and with LoRA; nan if nothing was measured.
    """

    family: str
    verdict: str
    lora: str = ""
    why: str = ""
    loss: float = float("nan")
    gradient: float = float("nan")
    sampled: float = float("nan")


def rows_of(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the rows of a model type in the table of architectures, as pairs (name of the row, changes to the model's
    configuration).

    The first row is for the unchanged model type. If the configuration can have an attention window but has none, the
    second row is for the model type with a window.
    """
    rows: list[tuple[str, dict[str, Any]]] = [(kind, {})]
    try:
        changes = windowed(small_config(kind))
        if changes is not None:
            small_config(kind, **changes)
            rows.append((f"{kind}, with a window", changes))
    except Exception:  # judge_family refuses a model that cannot be built
        return rows[:1]
    return rows


def judge_family(kind: str, name: str, changes: dict[str, Any]) -> FamilyVerdict:
    """Builds a small random model, probes the model as a run would, compares packed trees with separate paths (first
    without LoRA and then with LoRA), and returns the verdict.
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
            # If the forward pass does not use the weight of a layer, the adapter of this layer is never trained. In a
            # run, merging this adapter then does not change the weight.
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
