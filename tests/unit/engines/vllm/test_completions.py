"""What an answer must hold: right ones are read, and no broken one becomes a sample."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.vllm import body_of, sample_of
from turnwise.http_client import Fault

REQUEST = body_of([4, 5], Sampling(temperature=0.7, max_tokens=3), 7, {2, 9}, "v0-x", "salt")


def answer(ids: Any, values: Any = None, **changes: Any) -> dict[str, Any]:
    """A right answer that wrote these tokens, with changes."""
    spans = {"token_logprobs": values or [-0.5] * len(ids), "tokens": [f"token_id:{i}" for i in ids]}
    choice = {"token_ids": ids, "logprobs": spans, "prompt_token_ids": [4, 5], "finish_reason": "stop", **changes}
    return {"choices": [choice]}


def read(content: Any) -> Sample:
    return sample_of(json.dumps(content).encode(), REQUEST, 960)


def test_a_request_holds_everything_that_decides_the_draw() -> None:
    assert REQUEST["prompt"] == [4, 5] and REQUEST["seed"] == 7 and REQUEST["stop_token_ids"] == [2, 9]
    assert (REQUEST["temperature"], REQUEST["top_p"], REQUEST["top_k"], REQUEST["min_p"]) == (0.7, 1.0, 0, 0.0)
    assert REQUEST["ignore_eos"] and REQUEST["return_token_ids"] and REQUEST["logprobs"] == 0
    assert (REQUEST["model"], REQUEST["cache_salt"], REQUEST["max_tokens"]) == ("v0-x", "salt", 3)


@pytest.mark.parametrize("temperature", [0.005, 2.1])
def test_temperatures_that_vllm_changes_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        body_of([1], Sampling(temperature=temperature), 0, {2}, "m", "s")


def test_right_answers_are_read() -> None:
    assert read(answer([7, 2], [-0.25, 0.0])) == Sample([7, 2], [-0.25, 0.0], truncated=False)
    assert read(answer([7, 8, 6], finish_reason="length")) == Sample([7, 8, 6], [-0.5] * 3, truncated=True)
    assert read({**answer([2]), "model": "v0-x"}).ids == [2]
    assert not read(answer([7, 8, 9])).truncated  # the last token allowed is an end


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": answer([2])["choices"] * 2},
        answer([]),
        answer([7, 2], prompt_token_ids=[4, 6]),
        answer([7, 2], prompt_token_ids=None),
        answer([7, -2]),
        answer([960, 2]),  # the model knows no such token
        answer([3_000_000_000, 2]),
        answer([7, True]),
        answer([7.0, 2]),
        answer([7, 2], [-0.5]),
        answer([7, 2], [-0.5, None]),
        answer([7, 2], [-0.5, 0.5]),
        answer([7, 2], [-0.5, -9999.0]),
        answer([7, 2], [-0.5, -120.0]),  # float32 draws no such token
        answer([7, 2], [-0.5, float("nan")]),
        answer([7, 2], [-0.5, True]),
        answer([7, 2], logprobs=None),
        answer([7, 8, 8, 2]),
        answer([2, 7, 2]),
        answer([7, 8]),
        answer([7, 8], finish_reason="abort"),
        answer([7, 8, 6], finish_reason="abort"),
        {**answer([7, 2]), "model": "v1-y"},
        {**answer([7, 2]), "choices": [{**answer([8, 2])["choices"][0], "token_ids": [7, 2]}]},
    ],
)
def test_broken_answers_are_no_samples(broken: Any) -> None:
    with pytest.raises(Fault):
        read(broken)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.sampled_from(["", "stop", "token_id:7"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["choices", "logprobs", "x"]), inner),
    max_leaves=8,
)


@given(
    st.sampled_from(["token_ids", "logprobs", "prompt_token_ids", "finish_reason", None]),
    _JSON,
    st.binary(max_size=30),
    st.booleans(),
)
def test_whatever_a_server_writes_is_a_sample_that_fits_or_a_fault(
    key: Any, value: Any, raw: bytes, text: bool
) -> None:
    content = raw if text else json.dumps(value if key is None else answer([7, 2], **{key: value})).encode()
    found: list[Sample] = []
    with suppress(Fault):
        found.append(sample_of(content, REQUEST, 960))
    for sample in found:
        assert len(sample.ids) == len(sample.logprobs) and sample.ids[-1] in (2, 9)
