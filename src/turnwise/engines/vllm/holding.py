"""What a server is and which weights it has: the calls that ask and change it."""

from __future__ import annotations

import json
import re
from typing import Any

from turnwise.engines.vllm.connection import Connection
from turnwise.engines.vllm.faults import Fault
from turnwise.engines.vllm.weights import Snapshot
from turnwise.text import said

_NAME = re.compile(r"[\x20-\x7e]{1,500}")  # of a served model: it is printed in messages
_PROBE = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
_NO_RELOAD = "it has no call that reloads weights, which policy.lora.r=0 needs: scripts/serve.py --full-weights has it"


class Holding:
    """Args:
    connection: to the server.
    quick, long: s that a question may take, and a change.

    Every method raises :class:`Fault` where the server fails it; ``rejected`` where it cannot do what is asked.
    """

    def __init__(self, connection: Connection, quick: float, long: float) -> None:
        self.connection, self.quick, self.long = connection, quick, long

    async def models(self) -> list[dict[str, Any]]:
        """What is served, the base model first."""
        return cards_of(await self.connection.get_json("/v1/models", self.quick))

    async def has(self, snapshot: Snapshot) -> bool:
        """Whether it can answer with these weights now."""
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
        """Load weights that the server does not have.

        Raises:
            Fault: ``garbage``, where the server answers that it has loaded them and does not have them.
        """
        if snapshot.adapter:
            await self._load_adapter(snapshot)
        else:
            await self._reload(snapshot)
        if not await self.has(snapshot):
            raise Fault("garbage", f"it answers that it has loaded {snapshot.name}, and does not list it")

    async def drop(self, snapshot: Snapshot) -> None:
        """Unload an adapter; all weights at once cannot be."""
        if snapshot.adapter:
            await self.connection.post("/v1/unload_lora_adapter", {"lora_name": snapshot.name}, self.quick)

    async def examine(self, max_length: int) -> tuple[str, str]:
        """Served name of the base model and where its weights lie, if this is a server that a run can use.

        Its histories must be long enough, and its log-probs those of the distribution drawn from: where one token is allowed
        they are 0, for either of two tokens, which no distribution over all tokens could say of both.
        """
        card = (await self.models())[0]
        longest = card.get("max_model_len")
        if longest is not None and type(longest) is not int:
            raise Fault("garbage", "/v1/models answered a max_model_len that is no whole number")
        if longest is not None and longest < max_length:
            raise Fault("rejected", f"its --max-model-len is {longest}, and the run needs {max_length}")
        for token in (0, 1):
            body = {"model": card["id"], "prompt": [0], "allowed_token_ids": [token], **_PROBE}
            if not abs(first_logprob(await self.connection.post("/v1/completions", body, self.long))) < 1e-3:
                raise Fault(
                    "rejected",
                    "its log-probs are not those of the distribution drawn from; it needs --logprobs-mode processed_logprobs",
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
        """All weights from a folder. The mark is taken away first, so that a half-loaded model never carries one."""
        for path, body in (
            ("/update_weight_version", {"new_version": "loading"}),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(snapshot.folder)}}),
            ("/update_weight_version", {"new_version": snapshot.name}),
        ):
            answer = await self.connection.post(path, body, self.long)
            if names_errors(answer):
                raise Fault("garbage", f"{path} answered with an error: {said(answer)}")


def cards_of(found: Any) -> list[dict[str, Any]]:
    """The models that ``/v1/models`` names, each with an ``id``.

    Raises:
        Fault: ``garbage``, where it names none.
    """
    try:
        cards = [card for card in found["data"] if isinstance(card["id"], str) and _NAME.fullmatch(card["id"])]
    except (TypeError, LookupError):
        cards = []
    if not cards:
        raise Fault("garbage", "/v1/models answered no list of models")
    return cards


def names_errors(answer: bytes) -> bool:
    """Whether an answer, or one of the ``results`` of a server's workers in it, holds an error."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return False  # such calls may answer with nothing
    results = found.get("results") if isinstance(found, dict) else None
    parts = [found, *(results if isinstance(results, list) else [])]
    return any(isinstance(part, dict) and bool(part.get("error")) for part in parts)


def first_logprob(answer: bytes) -> float:
    """Returns the log-prob of a completion's first token, in nats.

    Raises:
        Fault: ``garbage``, where there is none.
    """
    try:
        found = json.loads(answer)["choices"][0]["logprobs"]["token_logprobs"][0]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = None
    if type(found) not in (int, float):
        raise Fault("garbage", "its completions hold no log-probs")
    return float(found)
