"""Calls that ask which weights a server has and that change them."""

from __future__ import annotations

import json
import re
from typing import Any

from turnwise.engines.vllm.connection import Connection
from turnwise.engines.vllm.faults import Fault
from turnwise.engines.vllm.weights import Snapshot
from turnwise.text import said

_NAME = re.compile(r"[\x20-\x7e]{1,500}")  # valid names of a served model, because messages print the name
_PROBE = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
_NO_RELOAD = "it cannot reload weights, which policy.lora.r=0 needs: start it with scripts/serve.py --full-weights"


class Holding:
    """Asks a server for its weights and changes them.

    Every method raises :class:`Fault` if the server fails; its kind is ``rejected`` if the server cannot do what is
    asked.

    Args:
        connection: to the server.
        quick, long: time limits in seconds for questions and for changes.
    """

    def __init__(self, connection: Connection, quick: float, long: float) -> None:
        self.connection, self.quick, self.long = connection, quick, long

    async def models(self) -> list[dict[str, Any]]:
        """Returns the served models, the base model first."""
        return cards_of(await self.connection.get_json("/v1/models", self.quick))

    async def has(self, snapshot: Snapshot) -> bool:
        """Returns whether the server can answer with these weights now."""
        if snapshot.adapter:
            return snapshot.name in {card["id"] for card in await self.models()}
        try:
            found = await self.connection.get_json("/weight_info", self.quick)
        except Fault as fault:
            if fault.kind != "missing":
                raise
            raise Fault("rejected", _NO_RELOAD) from None
        return isinstance(found, dict) and found.get("weight_version") == snapshot.name

    async def put(self, snapshot: Snapshot) -> None:
        """Loads weights that the server does not have.

        Raises:
            Fault: of kind ``garbage``, if the server reports that it has loaded them but does not have them.
        """
        if snapshot.adapter:
            await self._load_adapter(snapshot)
        else:
            await self._reload(snapshot)
        if not await self.has(snapshot):
            raise Fault("garbage", f"it answers that it has loaded {snapshot.name}, but does not list it")

    async def drop(self, snapshot: Snapshot) -> None:
        """Unloads an adapter. For full weights it does nothing, because they cannot be unloaded."""
        if snapshot.adapter:
            await self.connection.post("/v1/unload_lora_adapter", {"lora_name": snapshot.name}, self.quick)

    async def examine(self, max_length: int) -> tuple[str, str]:
        """Returns the served name of the base model and the path of its weights, if a run can use this server.

        The server must accept histories of ``max_length`` tokens. The server's log-probs must be those of the
        distribution that is sampled from. To test this, a request allows only one token, whose log-prob must then be 0.
        Two different tokens are tested, because the distribution over all tokens cannot give both a log-prob of 0.
        """
        card = (await self.models())[0]
        longest = card.get("max_model_len")
        if longest is not None and type(longest) is not int:
            raise Fault("garbage", "/v1/models answered a max_model_len that is not a whole number")
        if longest is not None and longest < max_length:
            raise Fault("rejected", f"its --max-model-len is {longest}, but the run needs {max_length}")
        for token in (0, 1):
            body = {"model": card["id"], "prompt": [0], "allowed_token_ids": [token], **_PROBE}
            if not abs(first_logprob(await self.connection.post("/v1/completions", body, self.long))) < 1e-3:
                raise Fault(
                    "rejected",
                    "its log-probs are not those of the sampled distribution; use --logprobs-mode processed_logprobs",
                )
        return str(card["id"]), str(card.get("root") or "")

    async def _load_adapter(self, snapshot: Snapshot) -> None:
        body = {"lora_name": snapshot.name, "lora_path": str(snapshot.folder)}
        try:
            await self.connection.post("/v1/load_lora_adapter", body, self.long)
        except Fault as fault:
            if fault.kind != "missing":
                raise
            raise Fault("rejected", f"it takes no adapter, or cannot see {snapshot.folder}: {fault}") from None

    async def _reload(self, snapshot: Snapshot) -> None:
        """Reloads all weights from a folder.

        The version is cleared first, so that a half-loaded model never has one.
        """
        for path, body in (
            ("/update_weight_version", {"new_version": "loading"}),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(snapshot.folder)}}),
            ("/update_weight_version", {"new_version": snapshot.name}),
        ):
            answer = await self.connection.post(path, body, self.long)
            if names_errors(answer):
                raise Fault("garbage", f"{path} answered with an error: {said(answer)}")


def cards_of(found: Any) -> list[dict[str, Any]]:
    """Returns the models that ``/v1/models`` lists, each with an ``id``.

    Raises:
        Fault: of kind ``garbage``, if it lists none.
    """
    try:
        cards = [card for card in found["data"] if isinstance(card["id"], str) and _NAME.fullmatch(card["id"])]
    except (TypeError, LookupError):
        cards = []
    if not cards:
        raise Fault("garbage", "/v1/models answered without a list of models")
    return cards


def names_errors(answer: bytes) -> bool:
    """Returns whether an answer, or one of its workers' ``results``, contains an error."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return False  # an empty answer is valid for such calls
    results = found.get("results") if isinstance(found, dict) else None
    parts = [found, *(results if isinstance(results, list) else [])]
    return any(isinstance(part, dict) and bool(part.get("error")) for part in parts)


def first_logprob(answer: bytes) -> float:
    """Returns the log-prob of a completion's first token, in nats.

    Raises:
        Fault: of kind ``garbage``, if there is none.
    """
    try:
        found = json.loads(answer)["choices"][0]["logprobs"]["token_logprobs"][0]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = None
    if type(found) not in (int, float):
        raise Fault("garbage", "its completions hold no log-probs")
    return float(found)
