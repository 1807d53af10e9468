"""What packed, sampled and plain passes say of real architectures, and that the table of docs/models.md says the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.models.attention import OfTrees, PackedTree, Rules, use_tree_attention
from turnwise.models.policy import with_adapter
from turnwise.models.random_models import filled, small_config, small_model
from turnwise.models.recurrence import Flow
from turnwise.rollouts.against_paths import against_paths
from turnwise.rollouts.check_architecture import judge_family, rows_of
from turnwise.rollouts.probe import probe

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
SAMPLE = ["bloom", "deepseek_v3", "gemma2", "glm4_moe", "gpt_oss", "granite", "jamba", "mamba", "mistral", "phi"]
SAMPLE += ["qwen3_5_text", "qwen3_next"]


def table() -> dict[str, tuple[str, str]]:
    """Of each row its verdict and that of LoRA."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if re.match(r"\| [a-z]", line)]
    return {row[0]: (row[1], row[2]) for row in cells if row[0] != "family"}


@pytest.mark.parametrize("kind", SAMPLE)
def test_rows_of_the_table_are_true(kind: str) -> None:
    name, changes = rows_of(kind)[0]
    found = judge_family(kind, name, changes)
    assert (found.verdict, found.lora) == table()[name], found


def test_a_window_that_the_default_has_not_is_judged_as_well() -> None:
    _, (name, changes) = rows_of("qwen2")
    config = small_config("qwen2", **changes)
    assert set(config.layer_types) == {"full_attention", "sliding_attention"} and config.sliding_window == 8
    found = judge_family("qwen2", name, changes)
    assert (found.verdict, found.lora) == ("exact", "exact"), found


def small(kind: str, **changes: Any) -> Any:
    return use_tree_attention(small_model(small_config(kind, **changes)))


def test_a_window_that_is_not_heeded_is_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("mistral")
    monkeypatch.setattr("turnwise.rollouts.probe.plan_of", PackedTree)
    monkeypatch.setattr("turnwise.models.packed_logprobs.plan_of", PackedTree)
    assert probe(model) is None
    monkeypatch.setattr(PackedTree, "_seen", lambda tree, window: tree.mask)
    found = probe(model)
    assert found is not None and found.where == "attention"


def test_a_scale_that_is_dropped_is_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("granite", logits_scaling=8.0)
    monkeypatch.setattr("turnwise.models.head.Head._is_product", lambda head: True)
    found = probe(model)
    assert found is not None and found.where == "head"


def test_what_the_engine_alone_does_otherwise_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("mistral")
    from turnwise.engines.decode_attention import DecodeAttention

    real = DecodeAttention.attend
    monkeypatch.setattr(DecodeAttention, "attend", lambda plan, *given: real(plan, *given[:5], Rules()))
    found = probe(model)
    assert found is not None and found.where == "engine"


def test_positions_that_are_not_heeded_are_named() -> None:
    found = probe(small("bart"))
    assert found is not None and found.where == "position"


def test_a_router_that_answers_a_tuple_gets_no_adapter() -> None:
    adapted = filled(with_adapter(small("phimoe"), 4, 8, 0.0))
    assert not any("router" in name and "lora" in name for name, _ in adapted.named_parameters())
    assert against_paths(adapted).exact


def test_every_reason_is_one_line_of_the_table() -> None:
    found = judge_family("mamba2", "mamba2", {})
    assert found.verdict == "refused" and "\n" not in found.why and "|" not in found.why


def test_a_state_that_is_not_handed_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("qwen3_5_text")
    assert probe(model) is None
    monkeypatch.setattr(OfTrees, "flow", property(lambda plan: whole_rows(plan.end)))
    found = probe(model)
    assert found is not None and found.where == "attention" and "branches" in found.why


def whole_rows(end_BS: torch.Tensor) -> Flow:
    """Each row as if it were one path."""
    B, S = end_BS.shape
    return Flow([S * b for b in range(B)], [S] * B, [-1] * B, B * S, end_BS.device)


def test_layers_whose_state_nobody_hands_on_are_refused() -> None:
    config = small_config("lfm2", layer_types=["conv", "full_attention", "conv", "full_attention"])
    with pytest.raises(ValueError, match="layers of kind conv"):
        use_tree_attention(small_model(config))
    with pytest.raises(ValueError, match="layers of kind linear_attention"):
        use_tree_attention(small_model(small_config("jamba")))
