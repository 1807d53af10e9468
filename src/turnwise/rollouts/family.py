"""Judges one architecture: exact, refused, or wrong (accepted by the probe but different from its plain paths)."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.models.attention import use_tree_attention
from turnwise.models.families import small_config, small_model, windowed
from turnwise.models.head import Head
from turnwise.models.policy import with_adapter
from turnwise.rollouts.against_paths import Distance, against_paths
from turnwise.rollouts.probe import probe

SAID = 240  # greatest number of characters of a reason
RANK, ALPHA = 4, 8


@dataclass(frozen=True, slots=True)
class FamilyVerdict:
    """One row of the table of architectures.

    Attributes:
        family: the model type, and whether its layers were given a window.
        verdict: ``exact``, ``refused`` or ``wrong``; ``traceback`` if something failed that was not refused.
        lora: the same verdict for the model with LoRA; empty if the model is not exact.
        why: the reason in one line, for every verdict but exact.
        loss, gradient, sampled: the larger of both distances (``against_paths.Distance``); nan if none was measured.
    """

    family: str
    verdict: str
    lora: str = ""
    why: str = ""
    loss: float = float("nan")
    gradient: float = float("nan")
    sampled: float = float("nan")


def rows_of(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the rows of a model type: as it is, and with a window if its configuration can have one and has none."""
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
    """Builds a small random model, probes it as a run would and compares it with plain paths, without and with LoRA."""
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
            # A layer whose weight is not used by its forward pass never trains its adapter, so a run merges no change
            # there.
            return _of(
                name, "exact", "refused", "LoRA: a merged copy applies an adapter that the model does not", plain, live
            )
    except Exception:
        return FamilyVerdict(name, "traceback", why=_cut(traceback.format_exc(limit=-1)))
    return _of(name, "exact" if both.exact else "wrong", "exact" if both.exact else "wrong", "", plain, both)


def filled(adapted: Any, seed: int = 0) -> Any:
    """Fills the adapters of a model with LoRA, so that they have an effect: their second factors are 0 at first."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1)
    return adapted


def _of(name: str, verdict: str, lora: str, why: str, *measured: Distance) -> FamilyVerdict:
    largest = {key: max(getattr(found, key) for found in measured) for key in ("loss", "gradient", "sampled")}
    return FamilyVerdict(name, verdict, lora, why, **largest)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _cut(text: str) -> str:
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= SAID else line[: SAID - 3] + "..."
