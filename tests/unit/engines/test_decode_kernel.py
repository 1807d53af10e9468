"""The attention of a decoding step that numba compiles, against torch's matrix products."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.random_models import small_config, small_model
from torch import Tensor

from turnwise.engines.decode_kernel import StreamedDecode
from turnwise.engines.decoding import DecodeAttention, DecodingTrunk
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine


def by_torch(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of the queries (H, D) of one twig over all of its keys (H_kv, T, D)."""
    H_kv, _, D = keys.shape
    weights = (q.view(H_kv, -1, D).double() @ keys.double().transpose(1, 2)).softmax(-1)
    return (weights @ values.double()).view(-1, 1, D)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([2, 16, 48, 5]),
    st.integers(0, 6),
    st.sampled_from([0.1, 1.0, 30.0]),
    st.data(),
)
def test_attention_over_rows_and_twigs(
    R: int, H_kv: int, G: int, D: int, length: int, size: float, data: st.DataObject
) -> None:
    row_N = torch.tensor(sorted(data.draw(st.lists(st.integers(0, R - 1), min_size=1, max_size=6))))
    N = len(row_N)
    seen_N = torch.tensor(data.draw(st.lists(st.integers(1, 40), min_size=N, max_size=N)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * size

    memory = random(R + 2, H_kv, 50, D), random(R + 2, H_kv, 50, D)
    keys, values = (x[1 : R + 1, :, :45] for x in memory)  # a view of the middle, as of a part of the store
    twig_keys, twig_values = random(N, H_kv, 8, D), random(N, H_kv, 8, D)
    new = random(N, H_kv * (G + 2), D)
    q, new_key, new_value = new.split([H_kv * G, H_kv, H_kv], dim=1)
    streamed = StreamedDecode([keys], [values], row_N, seen_N)
    found = streamed.attend(0, new.view(N, -1), 0.5, (twig_keys, twig_values), length).view(N, -1, 1, D)
    assert torch.equal(twig_keys[:, :, length], new_key)
    assert torch.equal(twig_values[:, :, length], new_value)
    for n in range(N):
        seen, row = int(seen_N[n]), int(row_N[n])
        own = [
            torch.cat([trunk[row, :, :seen], twigs[n, :, : length + 1]], dim=1)
            for trunk, twigs in ((keys, twig_keys), (values, twig_values))
        ]
        torch.testing.assert_close(found[n].double(), by_torch(q[n] * 0.5, *own), rtol=1e-4, atol=1e-4 * size)


@pytest.mark.parametrize("greatest", [0.0, 88.0, -88.0, 1e4, -1e4])
def test_scores_far_apart_neither_overflow_nor_vanish(greatest: float) -> None:
    keys = torch.tensor([[[[greatest], [greatest - 200.0], [greatest - 1.0]]]])
    values = torch.tensor([[[[1.0], [5.0], [3.0]]]])
    twigs = torch.full((1, 1, 1, 1), 0.0), torch.zeros(1, 1, 1, 1)
    new = torch.tensor([[1.0, greatest - 300.0, 0.0]])
    streamed = StreamedDecode([keys], [values], torch.tensor([0]), torch.tensor([3]))
    found = streamed.attend(0, new, 1.0, twigs, 0)
    part = torch.tensor(-1.0).exp()
    assert float(found) == pytest.approx(float((1 + 3 * part) / (1 + part)), rel=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_plan_gives_the_same_attention_with_and_without_the_kernel(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    outs = []
    try:
        for narrow in (4, 0):
            monkeypatch.setattr("turnwise.engines.decoding.NARROW", narrow)
            generator = torch.Generator().manual_seed(0)
            keys, values = ([torch.randn(4, 2, 30, 16, generator=generator)] for _ in range(2))
            row_N, seen_N = torch.tensor([0, 0, 2, 3]), torch.tensor([12, 30, 7, 1])
            plan = DecodeAttention(DecodingTrunk(keys, values, row_N), row_N, seen_N, 3)
            assert (plan.attend_rows is None) == (narrow == 0)
            for _ in range(3):
                q, k, v = (torch.randn(4, n, 1, 16, generator=generator) for n in (4, 2, 2))
                outs.append(plan.attend(0, q, k, v, 0.25))
                plan.grow()
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(torch.stack(outs[:3]), torch.stack(outs[3:]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 9])
def test_a_plan_goes_when_it_is_dropped(count: int) -> None:
    """Lanes do not collect circles of objects."""
    gc.disable()
    try:
        row_N = torch.zeros(count, dtype=torch.long)
        trunk = DecodingTrunk([torch.zeros(1, 1, 3, 4)], [torch.zeros(1, 1, 3, 4)], row_N)
        plan = DecodeAttention(trunk, row_N, row_N + 3, 2)
        plan.attend(0, torch.zeros(count, 2, 1, 4), torch.zeros(count, 1, 1, 4), torch.zeros(count, 1, 1, 4), 1.0)
        dropped = weakref.ref(plan)
        del plan
        assert dropped() is None
    finally:
        gc.enable()


def test_layers_with_other_head_counts_have_work_memory_of_their_own() -> None:
    torch.manual_seed(0)
    row = torch.arange(3)
    keys, values = ([torch.randn(3, heads, 20, 8) for heads in (2, 6)] for _ in range(2))
    streamed = StreamedDecode(keys, values, row, row + 18)
    for layer, heads in enumerate((2, 6)):
        twigs = torch.zeros(3, heads, 1, 8), torch.zeros(3, heads, 1, 8)
        new = torch.randn(3, 4 * heads, 8)
        found = streamed.attend(layer, new.view(3, -1), 1.0, twigs, 0).view(3, -1, 1, 8)
        for n in range(3):
            own = [
                torch.cat([trunk[layer][n, :, : 18 + n], twig[n]], dim=1)
                for trunk, twig in ((keys, twigs[0]), (values, twigs[1]))
            ]
            wanted = by_torch(new[n, : 2 * heads], *own)
            torch.testing.assert_close(found[n].double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", ["query", "key", "value", "trunk"])
def test_what_is_not_a_number_shows_in_the_attention(place: str) -> None:
    keys, values, new = torch.zeros(1, 1, 9, 8), torch.zeros(1, 1, 9, 8), torch.zeros(1, 3, 8)
    (keys[0, 0, 4] if place == "trunk" else new[0, ("query", "key", "value").index(place)])[3] = torch.nan
    streamed = StreamedDecode([keys], [values], torch.tensor([0]), torch.tensor([9]))
    twigs = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8)
    assert bool(streamed.attend(0, new.view(1, -1), 1.0, twigs, 0).isnan().any())


def test_a_model_in_bfloat16_whose_layers_are_not_llamas_is_sampled() -> None:
    engine = TreeEngine([1])
    engine.load_weights(small_model(small_config("gpt2")).to(torch.bfloat16), 0)
    (sample,) = engine.sample([engine.open([5, 6, 7])], Sampling(max_tokens=4), [3])
    assert 1 <= len(sample.ids) == len(sample.logprobs) <= 4


OUTPUT = """
import torch
from turnwise.engines.decode_kernel import StreamedDecode, prepare_decode_kernel
prepare_decode_kernel({threads})
torch.set_num_threads({threads})
torch.manual_seed(0)
trunk, twigs = ([torch.randn(2, 2, 57, 48)] for _ in range(2)), tuple(torch.randn(6, 2, 10, 48) for _ in range(2))
streamed = StreamedDecode(*trunk, torch.tensor([0, 0, 1, 1, 0, 1]), torch.tensor([57, 57, 30, 30, 57, 30]))
print(streamed.attend(0, torch.randn(6, 8 * 48), 0.5, twigs, 4).numpy().tobytes().hex())
"""


def test_the_first_start_computes_what_later_ones_do(tmp_path: Path) -> None:
    """The compiled functions and those that are read from numba's cache give the same bits, each for its threads."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second, *later = [
        subprocess.run(
            [sys.executable, "-c", OUTPUT.format(threads=threads)],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in (1, 2, 1, 2)
    ]
    assert list(tmp_path.rglob("*.nbc")) and [first, second] == later and first != ""
