"""The laboratory of architectures: what a packed tree, the engine and plain passes say of small random models.

``docs/models.md`` names each model type of transformers; a representative part of its verdicts is repeated here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.random_models import against_paths, filled, small_config, small_model, windowed

from turnwise.models.attention import OfTrees, PackedTree, Rules, use_tree_attention
from turnwise.models.head import Head
from turnwise.models.policy import with_adapter
from turnwise.models.recurrence import Flow
from turnwise.rollouts.probe import probe

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
KINDS = ["bart", "bloom", "deepseek_v3", "gemma2", "glm4_moe", "gpt_oss", "granite", "jamba", "llama", "mamba"]
KINDS += ["mistral", "phi", "phimoe", "qwen2", "qwen3_5_text", "qwen3_moe", "qwen3_next"]


def table() -> dict[str, tuple[str, str]]:
    """Each model type's verdict and that of LoRA."""
    lines = re.findall(r"^\| (exact|refused)[^|]*\|[^|]*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    lora = {"exact": "exact", "refused": ""}
    return {kind: (verdict, lora[verdict]) for verdict, kinds in lines for kind in re.findall("`(.+?)`", kinds)}


def verdicts(kind: str, changes: dict[str, Any]) -> tuple[str, str]:
    """A run refuses a model, or its packed trees are those of the paths: without LoRA, then with it."""
    model = small_model(small_config(kind, **changes))
    try:
        Head(use_tree_attention(model))
    except ValueError:
        return "refused", ""
    if probe(model) is not None:
        return "refused", ""
    if not against_paths(model, copy=False).exact:
        return "wrong", ""
    try:
        adapted = filled(with_adapter(model, 4, 8, 0.0))
        if probe(adapted) is not None:
            return "exact", "refused"
    except ValueError:  # peft has no adapter for any of its layers
        return "exact", "refused"
    return "exact", "exact" if against_paths(adapted, copy=True).exact else "wrong"


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_table_are_true(kind: str) -> None:
    assert verdicts(kind, {}) == table()[kind]


def test_a_window_that_the_default_has_not_is_judged_as_well() -> None:
    changes = windowed(small_config("qwen2"))
    assert changes is not None and verdicts("qwen2", changes) == table()["qwen2, with a window"] == ("exact", "exact")


def small(kind: str, **changes: Any) -> Any:
    return use_tree_attention(small_model(small_config(kind, **changes)))


def test_a_window_that_is_not_heeded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("mistral")
    monkeypatch.setattr("turnwise.rollouts.probe.plan_of", PackedTree)
    monkeypatch.setattr("turnwise.models.packed_logprobs.plan_of", PackedTree)
    assert probe(model) is None
    monkeypatch.setattr(PackedTree, "_seen", lambda tree, window: tree.mask)
    difference = probe(model)
    assert difference is not None and difference.where == "update"


def test_a_scale_of_the_head_that_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("granite", logits_scaling=8.0)
    monkeypatch.setattr("turnwise.models.head.Head._is_product", lambda head: True)
    difference = probe(model)
    assert difference is not None and difference.where == "update"


def test_what_the_engine_alone_does_otherwise_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("mistral")
    from turnwise.engines.decoding import DecodeAttention

    real = DecodeAttention.attend
    monkeypatch.setattr(DecodeAttention, "attend", lambda plan, *given: real(plan, *given[:5], Rules()))
    difference = probe(model)
    assert difference is not None and difference.where == "engine"


def test_a_state_that_is_not_handed_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("qwen3_5_text")
    assert probe(model) is None
    monkeypatch.setattr(OfTrees, "flow", property(lambda plan: whole_rows(plan.end)))
    assert probe(model) is not None


def whole_rows(end_BS: torch.Tensor) -> Flow:
    """Each row as if it were one path."""
    B, S = end_BS.shape
    return Flow([S * b for b in range(B)], [S] * B, [-1] * B, B * S, end_BS.device)


def test_layers_whose_state_nobody_hands_on_are_refused() -> None:
    config = small_config("lfm2", layer_types=["conv", "full_attention", "conv", "full_attention"])
    with pytest.raises(ValueError, match="conv"):
        use_tree_attention(small_model(config))
