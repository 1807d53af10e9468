"""Asks a vLLM server which weights it has loaded, and loads or unloads weights."""

from __future__ import annotations

import json
import re
from typing import Any

from turnwise.endpoints import Connection, Fault
from turnwise.engines.vllm.completions import first_logprob
from turnwise.engines.vllm.save_weights import Snapshot
from turnwise.text import said

# accepted names of served models: printable ASCII, because messages contain them
_NAME = re.compile(r"[\x20-\x7e]{1,500}")
_PROBE = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
_NO_RELOAD = (
    "the server cannot reload all weights, as policy.lora.r=0 requires: start it with scripts/serve.py --full-weights"
)


class Holding:
    """Asks a vLLM server which weights it has loaded, and loads or unloads weights.

    Every method raises :class:`Fault` if the server fails. The fault's kind is ``rejected`` if the server does not
    support the request.

    Args:
        quick: time limit in seconds for requests that only read or that unload an adapter.
        long: time limit in seconds for requests that load weights or sample.
    """

    def __init__(self, connection: Connection, quick: float, long: float) -> None:
        self.connection, self.quick, self.long = connection, quick, long

    async def models(self) -> list[dict[str, Any]]:
        """Returns the server's descriptions of its models; the base model is the first."""
        return cards_of(parsed(await self.connection.ask("/v1/models", self.quick), "/v1/models"))

    async def has(self, snapshot: Snapshot) -> bool:
        """Returns whether the server has the weights ``snapshot`` loaded."""
        if snapshot.adapter:
            return snapshot.name in {card["id"] for card in await self.models()}
        try:
            found = parsed(await self.connection.ask("/weight_info", self.quick), "/weight_info")
        except Fault as fault:
            if fault.kind != "missing":
                raise
            raise Fault("rejected", _NO_RELOAD) from None
        return isinstance(found, dict) and found.get("weight_version") == snapshot.name

    async def put(self, snapshot: Snapshot) -> None:
        """Loads the weights ``snapshot`` into the server.

        Raises:
            Fault: the kind is ``garbage`` if the server reports success but does not list the weights afterwards.
        """
        if snapshot.adapter:
            await self._load_adapter(snapshot)
        else:
            await self._reload(snapshot)
        if not await self.has(snapshot):
            raise Fault(
                "garbage", f"the server reports that it has loaded {snapshot.name}, but does not list this name"
            )

    async def drop(self, snapshot: Snapshot) -> None:
        """Unloads an adapter from the server. Does nothing for full weights, which cannot be unloaded."""
        if snapshot.adapter:
            await self.connection.ask("/v1/unload_lora_adapter", self.quick, {"lora_name": snapshot.name})

    async def examine(self, max_length: int) -> tuple[str, str]:
        """Checks that a run can use the server. Returns the base model's served name and the path of its weights.

        The server must accept histories of ``max_length`` tokens, and its log-probs must be those of the distribution
        that it samples from. To test the log-probs, a request allows only one token, whose log-prob must then be 0. Two
        tokens are tested in turn, because unrestricted log-probs cannot be 0 for both tokens.
        """
        card = (await self.models())[0]
        longest = card.get("max_model_len")
        if longest is not None and type(longest) is not int:
            raise Fault("garbage", "the answer to /v1/models has a max_model_len that is not a whole number")
        if longest is not None and longest < max_length:
            raise Fault(
                "rejected",
                f"the server's --max-model-len is {longest}, but the run needs rollout.max_length={max_length}",
            )
        for token in (0, 1):
            body = {"model": card["id"], "prompt": [0], "allowed_token_ids": [token], **_PROBE}
            if not abs(first_logprob(await self.connection.ask("/v1/completions", self.long, body))) < 1e-3:
                raise Fault(
                    "rejected",
                    "the log-probs that the server returns are not those of the distribution that it samples from; "
                    "start it with --logprobs-mode processed_logprobs",
                )
        return str(card["id"]), str(card.get("root") or "")

    async def _load_adapter(self, snapshot: Snapshot) -> None:
        body = {"lora_name": snapshot.name, "lora_path": str(snapshot.folder)}
        try:
            await self.connection.ask("/v1/load_lora_adapter", self.long, body)
        except Fault as fault:
            if fault.kind != "missing":
                raise
            raise Fault(
                "rejected", f"the server accepts no LoRA adapters, or cannot read {snapshot.folder} ({fault.whole})"
            ) from None

    async def _reload(self, snapshot: Snapshot) -> None:
        """Makes the server reload all weights from the folder of ``snapshot``.

        The server's weight version is first set to ``loading``, so that a partly loaded model never has the name of a
        snapshot.
        """
        for path, body in (
            ("/update_weight_version", {"new_version": "loading"}),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(snapshot.folder)}}),
            ("/update_weight_version", {"new_version": snapshot.name}),
        ):
            answer = await self.connection.ask(path, self.long, body)
            if names_errors(answer):
                raise Fault("garbage", f"the answer to {path} contains an error: {said(answer)}")


def cards_of(found: Any) -> list[dict[str, Any]]:
    """Returns the models with a valid ``id`` in an answer of ``/v1/models``.

    Raises:
        Fault: the answer lists no model with a valid ``id``; the kind is ``garbage``.
    """
    try:
        cards = [card for card in found["data"] if isinstance(card["id"], str) and _NAME.fullmatch(card["id"])]
    except (TypeError, LookupError):
        cards = []
    if not cards:
        raise Fault("garbage", "the answer to /v1/models contains no list of models")
    return cards


def parsed(answer: bytes, path: str) -> Any:
    """Parses an answer as JSON. ``path`` is the request's path, which the error message names.

    Raises:
        Fault: the answer is not JSON; the kind is ``garbage``.
    """
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise Fault("garbage", f"the answer to {path} is not JSON ({len(answer)} bytes)") from None


def names_errors(answer: bytes) -> bool:
    """Returns whether an answer has an error at its top level or in its list ``results`` (one entry per worker)."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return False  # an empty answer is valid for calls that change weights
    results = found.get("results") if isinstance(found, dict) else None
    parts = [found, *(results if isinstance(results, list) else [])]
    return any(isinstance(part, dict) and bool(part.get("error")) for part in parts)
