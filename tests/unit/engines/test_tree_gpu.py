"""The tree engine on a CUDA device, against the same model's full forward pass and against the engine on the CPU."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.tree_engine import TreeEngine

MakeModel = Callable[..., Any]
END = 5
TEMPERATURE = 0.7

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def histories_of(rng: random.Random) -> list[list[int]]:
    """Histories that share prefixes, and one that shares nothing."""
    spine = [rng.randrange(6, 97) for _ in range(60)]
    return [spine[:20], spine, spine[:33], spine[:33], spine[:40] + spine[:9], spine[30:55]]


def turns(model: Any, histories: list[list[int]], count: int = 3) -> list[list[tuple[list[int], Sample]]]:
    """Plays turns with forks in between; returns for each turn the histories before it and what was sampled."""
    engine = TreeEngine([END])
    engine.load_weights(model, 0)
    rng = random.Random(7)
    known = [list(history) for history in histories]
    nodes = [engine.open(history) for history in known]
    found = []
    for turn in range(count):
        seeds = [1000 * turn + i for i in range(len(nodes))]
        samples = engine.sample(nodes, Sampling(temperature=TEMPERATURE, max_tokens=6), seeds)
        found.append([(list(history), sample) for history, sample in zip(known, samples, strict=True)])
        for i, sample in enumerate(samples):
            observation = [rng.randrange(6, 97) for _ in range(rng.randrange(1, 9))]
            engine.extend(nodes[i], observation)
            known[i] += [*sample.ids, *observation]
        nodes.append(engine.fork(nodes[turn]))
        known.append(list(known[turn]))
    return found


@torch.no_grad()
def worst_difference(model: Any, played: list[list[tuple[list[int], Sample]]]) -> float:
    """Returns the largest difference between a sampled log-prob and that of one forward pass over the whole history."""
    worst = 0.0
    for history, sample in (item for turn in played for item in turn):
        ids = torch.tensor([history + sample.ids], device=model.device)
        logp = (model(input_ids=ids).logits[0].float() / TEMPERATURE).log_softmax(-1)
        for i, token in enumerate(sample.ids):
            worst = max(worst, abs(sample.logprobs[i] - logp[len(history) + i - 1, token].item()))
    return worst


def test_logprobs_are_the_models_own(make_model: MakeModel, kind: str, lora: bool) -> None:
    model = make_model(kind, lora).to("cuda")
    assert worst_difference(model, turns(model, histories_of(random.Random(1)))) < 1e-4


def test_logprobs_in_bfloat16_stay_near_the_models_own(make_model: MakeModel, kind: str) -> None:
    """The same weights in float32 are what the log-probs are compared with; on a CPU they differ by 0.034 at most."""
    model = make_model(kind, False).to("cuda", torch.bfloat16)
    assert worst_difference(copy.deepcopy(model).float(), turns(model, histories_of(random.Random(2)))) < 0.1


def test_the_same_seeds_sample_the_same_tokens_as_on_the_cpu(make_model: MakeModel, kind: str) -> None:
    model = make_model(kind, True)
    histories = histories_of(random.Random(3))
    here, there = turns(model, histories), turns(copy.deepcopy(model).to("cuda"), histories)
    for mine, other in zip(here, there, strict=True):
        assert [sample.ids for _, sample in mine] == [sample.ids for _, sample in other]
