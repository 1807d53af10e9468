"""The divergence from the base model, against a plain forward pass without packing and without chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.evaluation.general import General, counted, general_answers
from turnwise.evaluation.stats import pooled
from turnwise.models.policy import load_policy
from turnwise.models.shipped import tiny_path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def general(cache: Path) -> General:
    return general_answers(str(tiny_path()), "float32", cache, 6)


@pytest.fixture(scope="module")
def moved() -> Any:
    model, _ = load_policy(tiny_path(), rank=4, alpha=8)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.05)
    return model


def test_the_base_does_not_diverge_from_itself(general: General) -> None:
    rows = general.divergence(load_policy(tiny_path(), rank=4, alpha=8)[0])  # a new adapter is empty
    assert len(rows) == 6
    assert pooled(counted(rows, "kl")) == pytest.approx(0, abs=1e-5) and pooled(counted(rows, "same")) == 1


def test_the_divergence_is_that_of_a_plain_forward_pass(general: General, moved: Any) -> None:
    base, _ = load_policy(tiny_path())
    for row, found in enumerate(general.divergence(moved)):
        begin, length = int(general.begin_B[row]), int(general.length_B[row])
        ids = general.ids_BS[row, :length][None]
        with torch.no_grad():
            p, q = (model(input_ids=ids).logits[0, begin - 1 : length - 1].log_softmax(-1) for model in (base, moved))
        assert found.tokens == length - begin
        assert found.kl == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-3)
        assert found.same == int((p.argmax(-1) == q.argmax(-1)).sum())
        assert found.kl > 0


def test_answers_are_sampled_once(general: General, cache: Path) -> None:
    (file,) = cache.glob("general-*.safetensors")
    written = file.stat().st_mtime_ns
    again = general_answers(str(tiny_path()), "float32", cache, 6)
    assert torch.equal(again.ids_BS, general.ids_BS) and file.stat().st_mtime_ns == written
