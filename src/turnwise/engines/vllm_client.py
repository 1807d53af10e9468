"""Talks to one vLLM server: loads weights by name, asks for completions of token ids, and checks each answer.

The server may be several processes behind one address (vLLM's own data parallelism). Requests have the format of vLLM's
``/v1/completions``, which extends OpenAI's format: the prompt is a list of token ids, and the answer contains the ids of
the sampled tokens (``return_token_ids``) and their log-probs (``logprobs: 0``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from safetensors import safe_open
from safetensors.torch import save_file

from turnwise.endpoints import Connection, Fault, Retries
from turnwise.engines.engine import Sample, Sampling
from turnwise.errors import InputError
from turnwise.files import writing
from turnwise.text import said

TEMPERATURES = (0.01, 2.0)  # vLLM raises lower temperatures to the first value and refuses those above the second
_SEEDS = 2**63  # vLLM's seeds are signed 64-bit integers
_LEAST = -105.0  # least log-prob (nats) of a sampled token; below it, the probability in float32 is 0
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM accepts for --max-lora-rank
_QUICK = 30.0  # time limit in seconds of requests that only read or that unload an adapter
# accepted names of served models: printable ASCII, because messages contain them
_NAME = re.compile(r"[\x20-\x7e]{1,500}")
_WHOLE, _BODY, _HEAD = "model.safetensors", "model-body.safetensors", "model-head.safetensors"
_INDEX = "model.safetensors.index.json"
T = TypeVar("T")


class ServerError(InputError):
    """Raised when the server does not meet the run's needs and another attempt would not help."""


# -- weights on disk ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights on disk.

    ``name`` contains the version and a digest of the weights and their folder, so different weights never have the same
    name. A server may drop an adapter from memory and read its folder again later. The server must then find the same
    weights in the folder, not those of another run.
    """

    name: str
    version: int
    folder: Path
    rank: int  # of the LoRA adapter; 0: all weights
    vocabulary: int  # size of the model's vocabulary
    dtype: str  # of the base model's weights


def save(model: Any, version: int, root: Path) -> Snapshot:
    """Writes the adapter of ``model``, or all weights if it has no adapter, in Hugging Face's format.

    An output head that is tied to the embedding is written as a separate weight. Otherwise vLLM on CPUs would not
    update the head when it reloads weights, because it keeps a packed copy of a tied head.

    Raises:
        OSError: the weights cannot be written; ``filename`` is the folder's path.
    """
    rank = max(config.r for config in model.peft_config.values()) if hasattr(model, "get_base_model") else 0
    part = root / "unfinished"
    with writing(part):
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(part, safe_serialization=True)
        if not rank and model.config.tie_word_embeddings:
            _untie(model, part)
    digest = hashlib.sha256(str(root.resolve()).encode("utf-8", "surrogateescape"))
    for file in sorted(part.iterdir()):
        if file.suffix in (".safetensors", ".json"):
            with file.open("rb") as stream:
                digest.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    name = f"v{version}-{digest.hexdigest()[:16]}"
    folder = root / name
    if folder.exists():
        shutil.rmtree(part)
    else:
        with writing(folder):
            part.rename(folder)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return Snapshot(name, version, folder.resolve(), rank, int(model.config.vocab_size), dtype)


def _untie(model: Any, folder: Path) -> None:
    head = model.get_output_embeddings().weight.detach().clone().cpu()
    save_file({"lm_head.weight": head}, folder / _HEAD, metadata={"format": "pt"})
    index = folder / _INDEX
    if index.exists():
        content = json.loads(index.read_text(encoding="utf-8"))
    else:
        (folder / _WHOLE).rename(folder / _BODY)
        with safe_open(folder / _BODY, framework="pt") as stream:
            content = {"metadata": {}, "weight_map": dict.fromkeys(stream.keys(), _BODY)}
    content["weight_map"]["lm_head.weight"] = _HEAD
    index.write_text(json.dumps(content), encoding="utf-8")
    config = folder / "config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**content, "tie_word_embeddings": False}), encoding="utf-8")


def forget(root: Path, *needed: Snapshot | None) -> None:
    names = {snapshot.name for snapshot in needed if snapshot is not None}
    for folder in root.glob("v*-*"):
        if folder.name not in names:
            shutil.rmtree(folder, ignore_errors=True)


def serve_command(snapshot: Snapshot, model: str, max_length: int, url: str) -> str:
    parts = urlsplit(url)
    line = f"--host {parts.hostname} --port {parts.port or 80} --dtype {snapshot.dtype} --max-model-len {max_length} "
    line += "--logprobs-mode processed_logprobs --generation-config vllm"
    if not snapshot.rank:
        return f"VLLM_SERVER_DEV_MODE=1 vllm serve {snapshot.folder} --tokenizer {model} {line}"
    rank = next((rank for rank in _LORA_RANKS if rank >= snapshot.rank), snapshot.rank)
    line += f" --enable-lora --max-lora-rank {rank} --max-loras 4 --max-cpu-loras 8"
    return f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve {model} {line}"


# -- completions -------------------------------------------------------------------------------------------------------


def body_of(
    ids: Sequence[int], sampling: Sampling, seed: int, end_ids: Collection[int], model: str, salt: str
) -> dict[str, Any]:
    """Returns the body of the request for one action.

    Only ``end_ids`` end an action, also the model's own end-of-sequence token only if it is among them. ``model`` is
    the served name of the base model or of an adapter. ``salt`` is unique for the weights: the server's prefix cache
    reuses keys and values only between requests with the same salt.

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
        content = json.loads(answer)
        (choice,) = content["choices"]
        model = content.get("model", request["model"])
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        tokens, prompt, finish = choice["logprobs"]["tokens"], choice["prompt_token_ids"], choice["finish_reason"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        what = f"the answer is no completion with token_ids, prompt_token_ids and logprobs ({len(answer)} bytes); "
        what += "the server must support return_token_ids and logprobs, as vLLM does"
        raise Fault("garbage", what) from None
    if not isinstance(ids, list) or not ids or not all(type(token) is int and 0 <= token < vocabulary for token in ids):
        raise Fault("garbage", "the answer does not contain a list of valid token ids")
    if model != request["model"]:
        raise Fault("garbage", "the answer comes from another model or other weights than requested")
    if prompt != request["prompt"]:
        raise Fault("garbage", "the answer belongs to another prompt than the one that was sent")
    # log-probs may be above 0 by a rounding error
    valid = isinstance(logprobs, list) and all(type(x) in (int, float) and _LEAST < x < 1e-3 for x in logprobs)
    if not valid or len(logprobs) != len(ids) or tokens != [f"token_id:{token}" for token in ids]:
        raise Fault("garbage", "the log-probs in the answer do not belong to its tokens")
    ends = set(request["stop_token_ids"])
    if len(ids) > request["max_tokens"] or any(token in ends for token in ids[:-1]):
        raise Fault("garbage", "the answer has tokens after the action's end token, or more than max_tokens")
    truncated = ids[-1] not in ends
    if truncated and (len(ids) < request["max_tokens"] or finish != "length"):
        raise Fault("garbage", f"the action in the answer stops too early (finish_reason {str(finish)[:20]!r})")
    return Sample(ids, [float(value) for value in logprobs], truncated)


# -- the server --------------------------------------------------------------------------------------------------------


class VllmClient:
    """Asks one vLLM server. It must be used in only one event loop.

    After a failed request the server may be another process without the run's weights. Before the next attempt, the
    client therefore asks which weights the server has, and loads those that are missing.

    Args:
        connection: the connection to the server.
        retries: how failed requests are repeated.
        attempt_limit: time limit of one attempt in seconds, including the time in the server's queue.
        max_length: greatest number of tokens of a history including its last action.
        model: folder or id of the run's base model.
        say: callback for messages to the user, one line each.
        command: the command that starts the server, for messages.
    """

    def __init__(
        self,
        connection: Connection,
        retries: Retries,
        attempt_limit: float,
        max_length: int,
        model: str,
        say: Callable[[str], None],
        command: str,
    ) -> None:
        self.connection, self.retries, self.attempt_limit = connection, retries, attempt_limit
        self._quick = min(_QUICK, attempt_limit)
        self.max_length, self.model, self.say, self.command = max_length, model, say, command
        self.tally: Counter[str] = Counter()
        self.base = ""  # the base model's served name
        self._needed: Snapshot | None = None  # weights that the server must have
        self._doubtful = False  # whether the server may lack weights, because a request has failed
        self._suits = False  # whether the server was examined since it last answered after a pause
        self._loads = 0  # number of times that weights were loaded
        self._restoring: asyncio.Task[None] | None = None
        self._away = False  # whether the user knows that the server does not answer

    async def complete(self, snapshot: Snapshot, body: dict[str, Any]) -> Sample:
        """Raises a ServerError if all attempts failed, or the server refuses the request."""

        async def attempt() -> Sample:
            await self._restore()
            loads = self._loads
            sample = sample_of(await self._ask("/v1/completions", body), body, snapshot.vocabulary)
            # An adapter is selected by its name in the request. Full weights have no name there, so the server must
            # have had the same ones before and after the request.
            if not snapshot.rank and not (await self._has(snapshot) and loads == self._loads):
                raise Fault("missing", "the server's weights were loaded again during the request")
            return sample

        sample = await self._send(attempt)
        self.tally["requests"] += 1
        return sample

    async def load(self, snapshot: Snapshot) -> None:
        """Loads the weights, and unloads the adapter before. Raises a ServerError if the server cannot, or does not
        suit.
        """
        before, self._needed = self._needed, snapshot
        self._doubtful = True
        await self._send(self._restore)
        if before is not None and before != snapshot:
            await self._drop(before)

    async def close(self) -> None:
        """Unloads the run's adapter and disconnects."""
        if self._needed is not None:
            await self._drop(self._needed)
        self._needed = None
        await self.connection.close()

    async def _send(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await self.retries.send(attempt, self._failed)
        except Fault as fault:
            where = f"vLLM at {self.connection.url}"
            if fault.kind == "unreachable":
                raise ServerError(
                    f"{where} does not answer (engine.url; waited {self.retries.limit:.0f} s, engine.wait_limit). Start "
                    f"it with: {self.command}"
                ) from None
            if fault.kind == "rejected":
                raise ServerError(f"{where} cannot serve this run: {fault.whole}") from None
            raise ServerError(
                f"{where} failed a request too often (engine.attempts, engine.wait_limit); the last failure was "
                f"{fault.whole}"
            ) from None
        self._away = False
        return result

    def _failed(self, fault: Fault) -> None:
        self.tally[f"faults/{fault.kind}"] += 1
        if fault.kind not in ("rate_limited", "garbage"):
            self._doubtful = True
        self._suits &= fault.kind != "unreachable"
        if fault.kind == "unreachable" and not self._away:
            self._away = True
            self.say(
                f"vLLM at {self.connection.url} does not answer; the run waits for it at most "
                f"{self.retries.limit:.0f} s. To start it: {self.command}"
            )

    # -- weights -------------------------------------------------------------------------------------------------------

    async def _restore(self) -> None:
        """Makes sure, after a failure, that the server suits the run and has the weights that it needs. Requests that
        failed together wait for one such check and share its fault.
        """
        if self._doubtful:
            if self._restoring is None or self._restoring.done():
                self._restoring = asyncio.create_task(self._load_missing())
            await asyncio.shield(self._restoring)

    async def _load_missing(self) -> None:
        if not self._suits:
            await self._examine()
            self._suits = True
        snapshot: Snapshot | None = None
        while self._needed is not None and snapshot is not self._needed:  # newer weights may come meanwhile
            snapshot = self._needed
            if not await self._has(snapshot):
                await (self._load_adapter if snapshot.rank else self._reload)(snapshot)
                self._loads += 1
                if not await self._has(snapshot):
                    what = f"the server reports that it has loaded {snapshot.name}, but does not list this name"
                    raise Fault("garbage", what)
        self._doubtful = False

    async def _examine(self) -> None:
        """Checks that a run can use the server, and reads the base model's served name.

        The server must accept histories of ``max_length`` tokens, and its log-probs must be those of the distribution
        that it samples from. To test the log-probs, a request allows only one token, whose log-prob must then be 0. Two
        tokens are tested in turn, because unrestricted log-probs cannot be 0 for both tokens.
        """
        card = (await self._models())[0]
        longest = card.get("max_model_len", self.max_length)
        if type(longest) is not int:
            raise Fault("garbage", "the answer to /v1/models has a max_model_len that is not a whole number")
        if longest < self.max_length:
            what = f"its --max-model-len is {longest}, but the run needs rollout.max_length={self.max_length}"
            raise Fault("rejected", what)
        probe = {
            "model": card["id"],
            "prompt": [0],
            "max_tokens": 1,
            "temperature": 1.0,
            "logprobs": 0,
            "ignore_eos": True,
        }
        for token in (0, 1):
            answer = await self._ask("/v1/completions", {**probe, "allowed_token_ids": [token]})
            try:
                logprob = float(json.loads(answer)["choices"][0]["logprobs"]["token_logprobs"][0])
            except (ValueError, LookupError, TypeError, RecursionError):
                raise Fault("garbage", "the server's completions contain no log-probs") from None
            if not abs(logprob) < 1e-3:
                what = "its log-probs are not those of the distribution that it samples from; start it with "
                raise Fault("rejected", what + "--logprobs-mode processed_logprobs")
        self.base, root = str(card["id"]), str(card.get("root") or self.model)
        if self._needed is not None and self._needed.rank and Path(root).resolve() != Path(self.model).resolve():
            self.say(
                f"warning: vLLM at {self.connection.url} serves {root}, but this run trains {self.model}; if their weights "
                "differ, start the server with the run's model"
            )

    async def _models(self) -> list[dict[str, Any]]:
        answer = await self.connection.ask("/v1/models", self._quick)
        try:
            cards = [
                card
                for card in json.loads(answer)["data"]
                if isinstance(card["id"], str) and _NAME.fullmatch(card["id"])
            ]
        except (ValueError, TypeError, LookupError, RecursionError):
            cards = []
        if not cards:
            raise Fault("garbage", "the answer to /v1/models contains no list of models")
        return cards

    async def _has(self, snapshot: Snapshot) -> bool:
        if snapshot.rank:
            return snapshot.name in {card["id"] for card in await self._models()}
        try:
            answer = json.loads(await self.connection.ask("/weight_info", self._quick))
        except (ValueError, RecursionError):
            raise Fault("garbage", "the answer to /weight_info is not JSON") from None
        except Fault as fault:
            if fault.kind != "missing":
                raise
            what = (
                "it cannot reload all weights, as policy.lora.r=0 requires; set VLLM_SERVER_DEV_MODE=1 where it starts"
            )
            raise Fault("rejected", what) from None
        return isinstance(answer, dict) and answer.get("weight_version") == snapshot.name

    async def _load_adapter(self, snapshot: Snapshot) -> None:
        body = {"lora_name": snapshot.name, "lora_path": str(snapshot.folder)}
        try:
            await self._ask("/v1/load_lora_adapter", body)
        except Fault as fault:
            if fault.kind != "missing":
                raise
            what = "it accepts no LoRA adapters (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora), or cannot read "
            raise Fault("rejected", f"{what}{snapshot.folder}", said=fault.said) from None

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
            answer = await self._ask(path, body)
            if b'"error"' in answer:  # at the top level, or in the list of the workers' results
                raise Fault("garbage", f"the answer to {path} contains an error: {said(answer)}")

    async def _drop(self, snapshot: Snapshot) -> None:
        if snapshot.rank:  # full weights cannot be unloaded
            try:
                await self.connection.ask("/v1/unload_lora_adapter", self._quick, {"lora_name": snapshot.name})
            except Fault:  # if the server died, the adapter is gone; an adapter that stays costs little memory
                self.tally["not_unloaded"] += 1

    async def _ask(self, path: str, body: Any) -> bytes:
        return await self.connection.ask(path, self.attempt_limit, body)
