"""Builds the bodies of completion requests with token ids, and checks the answers.

The format is that of vLLM's ``/v1/completions``, which extends OpenAI's format: the prompt is a list of token ids, and
the answer contains the ids of the sampled tokens (``return_token_ids``) and their log-probs (``logprobs: 0``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from turnwise.endpoints import Fault
from turnwise.engines.engine import Sample, Sampling

TEMPERATURES = (0.01, 2.0)  # vLLM raises lower temperatures to the first value and refuses those above the second
_SEEDS = 2**63  # vLLM's seeds are signed 64-bit integers
_LEAST = -105.0  # least log-prob (nats) of a sampled token; below it, the probability in float32 is 0


def body_of(
    ids: Sequence[int], sampling: Sampling, seed: int, end_ids: Collection[int], model: str, salt: str
) -> dict[str, Any]:
    """Returns the body of the request for one action.

    Args:
        ids: token ids of the whole history.
        end_ids: ids of the tokens that end an action. The model's own end-of-sequence token ends an action only if it
            is listed here.
        model: served name of the base model or of an adapter.
        salt: text that is unique for the weights. The server's prefix cache reuses keys and values only between
            requests with the same salt.

    Raises:
        ValueError: vLLM would change or refuse the temperature.
    """
    least, most = TEMPERATURES
    if sampling.temperature and not least <= sampling.temperature <= most:
        raise ValueError(
            f"temperature must be 0 or from {least} to {most} with engine=vllm, which supports no other value; "
            f"got {sampling.temperature}"
        )
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,  # this and the next two penalties override the model's generation config
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed % _SEEDS,
        "stop_token_ids": sorted(end_ids),
        "ignore_eos": True,
        "logprobs": 0,  # 0: only the log-prob of each sampled token
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # tokens as "token_id:<id>", since a token may not be valid text
        "skip_special_tokens": False,
        "cache_salt": salt,
    }


def sample_of(answer: bytes, request: dict[str, Any], vocabulary: int) -> Sample:
    """Reads the action from a server's answer and checks it against the request.

    ``answer`` and ``request`` are the bodies. All token ids must be below ``vocabulary``.

    Raises:
        Fault: the answer does not fit the request; the kind is ``garbage``. Examples are invalid token ids, log-probs
            of other tokens, a prompt that was not sent, and tokens after the action's end.
    """
    try:
        found = json.loads(answer)
        choices, model = found["choices"], found.get("model", request["model"])
        choice = choices[0]
        ids, spans = choice["token_ids"], choice["logprobs"]
        logprobs, tokens = spans["token_logprobs"], spans["tokens"]
        prompt, finish = choice["prompt_token_ids"], choice["finish_reason"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        what = f"the answer is no completion with token_ids, prompt_token_ids and logprobs ({len(answer)} bytes); "
        what += "the server must support return_token_ids and logprobs, as vLLM does"
        raise Fault("garbage", what) from None
    if len(choices) != 1 or not _are_ids(ids, vocabulary) or not ids:
        raise Fault("garbage", "the answer does not contain exactly one list of valid token ids")
    if model != request["model"]:
        raise Fault("garbage", "the answer comes from another model or other weights than requested")
    if prompt != request["prompt"]:
        raise Fault("garbage", "the answer belongs to another prompt than the one that was sent")
    if not _are_logprobs(logprobs) or len(logprobs) != len(ids) or tokens != [f"token_id:{token}" for token in ids]:
        raise Fault("garbage", "the log-probs in the answer do not belong to its tokens")
    ends = set(request["stop_token_ids"])
    ended = ids[-1] in ends
    if len(ids) > request["max_tokens"] or any(token in ends for token in ids[:-1]):
        raise Fault("garbage", "the answer has tokens after the action's end token, or more than max_tokens")
    if not ended and (len(ids) < request["max_tokens"] or finish != "length"):
        raise Fault("garbage", f"the action in the answer stops too early (finish_reason {str(finish)[:20]!r})")
    return Sample(ids, [float(value) for value in logprobs], truncated=not ended)


def _are_ids(value: Any, vocabulary: int) -> bool:
    return isinstance(value, list) and all(type(token) is int and 0 <= token < vocabulary for token in value)


def _are_logprobs(value: Any) -> bool:
    """Returns whether ``value`` is a list of valid log-probs: at most 0 up to rounding, and above ``_LEAST``."""
    return isinstance(value, list) and all(type(x) in (int, float) and _LEAST < x < 1e-3 for x in value)


def first_logprob(answer: bytes) -> float:
    """Returns the natural log-prob of the first token of a completion.

    Raises:
        Fault: the answer contains no log-prob; the kind is ``garbage``.
    """
    try:
        found = json.loads(answer)["choices"][0]["logprobs"]["token_logprobs"][0]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = None
    if type(found) not in (int, float):
        raise Fault("garbage", "the server's completions contain no log-probs")
    return float(found)
