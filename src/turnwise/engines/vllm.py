"""Samples from a vLLM server over HTTP (``engine=vllm``). The server runs in a separate Python environment.

The server may be several processes behind one address (vLLM's own data parallelism). Requests have the format of vLLM's
``/v1/completions``, which extends OpenAI's format: the prompt is a list of token ids, and the answer contains the ids of
the sampled tokens (``return_token_ids``) and their log-probs (``logprobs: 0``). A node is a list of token ids; its keys
and values are in the server's prefix cache. Each version of the weights has a unique name, and ``load_weights`` closes
all nodes, so that no history is continued by newer weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from annotated_types import Ge, Gt
from safetensors import safe_open
from safetensors.torch import save_file

from turnwise.daemon_threads import EventLoop
from turnwise.engines.engine import Named, Sample, Sampling, Told
from turnwise.errors import InputError
from turnwise.files import writing
from turnwise.http_client import Connection, Fault, Retries
from turnwise.text import plain_body

TEMPERATURES = (0.01, 2.0)  # vLLM raises lower temperatures to the first value and refuses those above the second
_SEEDS = 2**63  # vLLM's seeds are signed 64-bit integers
_LEAST = -105.0  # least log-prob (nats) of a sampled token; below it, the probability in float32 is 0
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM accepts for --max-lora-rank
_QUICK = 30.0  # time limit in seconds of requests that only read or that unload an adapter
_NAME = re.compile(r"[\x20-\x7e]{1,500}")  # accepted names of served models, because messages contain them
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


def save_snapshot(model: Any, version: int, root: Path) -> Snapshot:
    """Writes the adapter of ``model``, or all weights if it has no adapter, in Hugging Face's format.

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
    """Writes the output head that is tied to the embedding as a separate weight. Otherwise vLLM on CPUs would not update
    the head when it reloads weights, because it keeps a packed copy of a tied head.
    """
    whole, head, index = folder / "model.safetensors", "model-head.safetensors", folder / "model.safetensors.index.json"
    weight = model.get_output_embeddings().weight.detach().clone().cpu()
    save_file({"lm_head.weight": weight}, folder / head, metadata={"format": "pt"})
    if index.exists():
        content = json.loads(index.read_text(encoding="utf-8"))
    else:
        body = whole.rename(folder / "model-body.safetensors")
        with safe_open(body, framework="pt") as stream:
            content = {"metadata": {}, "weight_map": dict.fromkeys(stream.keys(), body.name)}
    content["weight_map"]["lm_head.weight"] = head
    index.write_text(json.dumps(content), encoding="utf-8")
    config = folder / "config.json"
    about = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**about, "tie_word_embeddings": False}), encoding="utf-8")


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


def _parsed(answer: bytes, read: Callable[[Any], T], what: str) -> T:
    try:
        return read(json.loads(answer))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Fault("garbage", what) from None


def sample_of(answer: bytes, request: dict[str, Any], vocabulary: int) -> Sample:
    """Reads the action from the body of a server's answer and checks it against the body of the request.

    Raises:
        Fault: the answer does not fit the request; the kind is ``garbage``.
    """

    def read(content: Any) -> tuple[Any, ...]:
        (choice,) = content["choices"]
        spans = choice["logprobs"]
        of_action = choice["token_ids"], spans["token_logprobs"], spans["tokens"]
        return *of_action, choice["prompt_token_ids"], choice["finish_reason"], content.get("model", request["model"])

    what = "the answer is no completion with the token_ids, prompt_token_ids and logprobs that vLLM gives if asked"
    ids, logprobs, tokens, prompt, finish, model = _parsed(answer, read, what)
    ends, most = set(request["stop_token_ids"]), request["max_tokens"]
    wrong = None
    if not isinstance(ids, list) or not ids or not all(type(token) is int and 0 <= token < vocabulary for token in ids):
        wrong = "does not contain a list of valid token ids"
    elif model != request["model"]:
        wrong = "comes from another model or other weights than requested"
    elif prompt != request["prompt"]:
        wrong = "belongs to another prompt than the one that was sent"
    elif (  # log-probs may be above 0 by a rounding error
        not isinstance(logprobs, list)
        or not all(type(x) in (int, float) and _LEAST < x < 1e-3 for x in logprobs)
        or len(logprobs) != len(ids)
        or tokens != [f"token_id:{token}" for token in ids]
    ):
        wrong = "has log-probs that do not belong to its tokens"
    elif len(ids) > most or not ends.isdisjoint(ids[:-1]):
        wrong = "has tokens after the action's end token, or more than max_tokens"
    elif ids[-1] not in ends and (len(ids) < most or finish != "length"):
        wrong = f"stops too early (finish_reason {str(finish)[:20]!r})"
    if wrong:
        raise Fault("garbage", f"the answer {wrong}")
    return Sample(ids, [float(value) for value in logprobs], truncated=ids[-1] not in ends)


# -- the engine --------------------------------------------------------------------------------------------------------


class VllmEngine:
    """Samples from a vLLM server at ``url``. Settings that are not explained here are in ``conf/engine/vllm.yaml``.

    After a failed request the server may be another process without the run's weights. Before the next attempt, the
    engine therefore asks which weights the server has, and loads those that are missing. Coroutines run in the thread
    of the event loop ``_loop``, and other methods in any thread.

    Args:
        model: folder or id of the base model.
        folder: folder for the weights, to which the server must have access under the same path.
        say: callback for messages to the user, one line each.
        max_length: greatest number of tokens of a history including its last action.
    """

    served = True

    def __init__(
        self,
        end_ids: Sequence[int],
        model: str,
        folder: str | Path,
        say: Callable[[str], None],
        url: str = "http://127.0.0.1:8000",
        max_length: int = 4096,
        key_variable: str = "TURNWISE_VLLM_KEY",
        schedule: Named = "free",
        concurrency: Annotated[int, Ge(1)] = 256,
        attempts: Annotated[int, Ge(1)] = 6,
        attempt_limit: Annotated[float, Gt(0)] = 600.0,
        wait_limit: Annotated[float, Gt(0)] = 900.0,
        backoff: Annotated[float, Ge(0)] = 0.5,
    ) -> None:
        url = url.rstrip("/").removesuffix("/v1")
        self.connection = Connection(url, key_variable, concurrency + 8)  # 8 more for checks
        self.retries = Retries(attempts, backoff, limit=wait_limit, patient=True)
        self.end_ids = frozenset(end_ids)
        self.schedule = schedule
        self.model, self.folder, self.say, self.max_length = model, Path(folder) / "weights", say, max_length
        self.concurrency, self.attempt_limit = concurrency, attempt_limit
        self.version = -1
        self.tally: Counter[str] = Counter()
        self._loop = EventLoop("vllm")
        self._histories: dict[int, list[int]] = {}  # token ids by node
        self._numbers = count(1)
        self._snapshot: Snapshot | None = None  # weights that are loaded
        self._staged: list[Snapshot] = []  # snapshots of weights that are written but not loaded yet
        self._folders = threading.Lock()  # guards the folders of weights: one thread may load while another writes
        self._busy = threading.Lock()
        self._disconnected()

    def _disconnected(self) -> None:
        self._places = asyncio.Semaphore(self.concurrency)  # each request in progress has acquired it
        self._tasks: dict[int, asyncio.Task[Sample]] = {}  # running request by node
        self._base = ""  # the base model's served name
        self._needed: Snapshot | None = None  # weights that the server must have; None: no request has been sent
        self._doubtful = False  # whether the server may lack weights, because a request has failed
        self._suits = False  # whether the server was examined since it last answered after a pause
        self._loads = 0  # number of times that weights were loaded
        self._restoring: asyncio.Task[None] | None = None
        self._away = False  # whether the user knows that the server does not answer

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        if not ids:
            raise ValueError("a history needs at least one token")
        node = next(self._numbers)
        self._histories[node] = list(ids)
        return node

    def fork(self, node: int) -> int:
        return self.open(self._history(node))

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._history(node).extend(ids)

    def close(self, nodes: Sequence[int]) -> None:
        """Closes nodes and cancels their requests; :meth:`sample` returns empty samples. Any thread may call this."""
        for node in nodes:
            self._histories.pop(node, None)
        if self._needed is not None:
            self._loop.start(self._cancel(nodes)).result()

    def _history(self, node: int) -> list[int]:
        try:
            return self._histories[node]
        except KeyError:
            raise RuntimeError(f"node {node} is closed; loading weights closes all nodes") from None

    # -- samples -------------------------------------------------------------------------------------------------------

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """An error cancels all requests."""
        with self._busy:
            samples = [Sample([], [], truncated=True) for _ in nodes]
            try:
                requests = [self._start(node, sampling, seed) for node, seed in zip(nodes, seeds, strict=True)]
                places = {request: place for place, request in enumerate(requests)}
                for request in as_completed(requests):
                    place = places[request]
                    if request.cancelled() or nodes[place] not in self._histories:
                        continue  # the node was closed while its action was sampled
                    sample = samples[place] = request.result()
                    self._histories[nodes[place]].extend(sample.ids)
                    if on_sample is not None:
                        on_sample(place, sample)
            finally:
                if self._needed is not None:
                    self._loop.start(self._cancel(nodes)).result()
            return samples

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        """Cancelling this coroutine cancels the request."""
        sample = await asyncio.wrap_future(self._start(node, sampling, seed))
        self._history(node).extend(sample.ids)
        return sample

    def _start(self, node: int, sampling: Sampling, seed: int) -> Future[Sample]:
        if self._snapshot is None:
            raise RuntimeError("there are no weights to sample from: call load_weights first")
        return self._loop.start(self._complete(node, self._history(node), sampling, seed))

    async def _complete(self, node: int, history: Sequence[int], sampling: Sampling, seed: int) -> Sample:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[node] = task
        try:
            async with self._places:  # the weights are chosen when the request is sent, not before it waits
                snapshot = self._snapshot
                assert snapshot is not None
                model = snapshot.name if snapshot.rank else self._base
                body = body_of(history, sampling, seed, self.end_ids, model, salt=snapshot.name)
                sample = await self._send(partial(self._attempt, snapshot, body))
        finally:
            self._tasks.pop(node, None)
        self.tally["requests"] += 1
        return sample

    async def _attempt(self, snapshot: Snapshot, body: dict[str, Any]) -> Sample:
        await self._restore()
        loads = self._loads
        sample = sample_of(await self._ask("/v1/completions", body), body, snapshot.vocabulary)
        # An adapter is selected by its name in the request. Full weights have no name there, so the server must have had
        # the same ones before and after the request.
        if not snapshot.rank and not (await self._has(snapshot) and loads == self._loads):
            raise Fault("missing", "the server's weights were loaded again during the request")
        return sample

    async def _cancel(self, nodes: Sequence[int]) -> None:
        tasks = [task for node in nodes if (task := self._tasks.pop(node, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def report(self) -> dict[str, float]:
        return dict(sorted(self.tally.items()))

    # -- weights -------------------------------------------------------------------------------------------------------

    def load_weights(self, model: Any, version: int) -> None:
        """Waits for the server, and until a batch of actions that is being sampled is complete.

        Raises:
            ServerError: the server is unreachable for too long, or cannot load the weights.
        """
        self.stage(model, version)()

    def stage(self, model: Any, version: int) -> Callable[[], None]:
        """Writes the weights now and returns a function that loads them, as :meth:`load_weights` does."""
        with self._folders:
            snapshot = save_snapshot(model, version, self.folder)
            self._staged.append(snapshot)
        return partial(self._load, snapshot)

    def _load(self, snapshot: Snapshot) -> None:
        with self._busy:
            before, self._snapshot = self._snapshot, None  # None until the server has the new weights
            self._loop.start(self._replace(snapshot)).result()
            with self._folders:
                self._staged.remove(snapshot)
                forget(self.folder, snapshot, before, *self._staged)
            self._snapshot, self.version = snapshot, snapshot.version
            self._histories.clear()

    async def _replace(self, snapshot: Snapshot) -> None:
        before, self._needed = self._needed, snapshot
        self._doubtful = True
        await self._send(self._restore)
        if before is not None and before != snapshot:
            await self._drop(before)

    async def _drop(self, snapshot: Snapshot) -> None:
        if snapshot.rank:  # full weights cannot be unloaded
            try:
                await self._ask("/v1/unload_lora_adapter", {"lora_name": snapshot.name}, _QUICK)
            except Fault:  # if the server died, the adapter is gone; an adapter that stays costs little memory
                self.tally["not_unloaded"] += 1

    def shutdown(self) -> None:
        """Unloads the adapters and disconnects. ``load_weights`` connects again."""
        self._histories.clear()
        if self._needed is not None:
            self._loop.close(self._leave(self._needed))
            self._snapshot = None
            self._disconnected()
            forget(self.folder)

    async def _leave(self, snapshot: Snapshot) -> None:
        await self._drop(snapshot)
        await self.connection.close()

    # -- the server ----------------------------------------------------------------------------------------------------

    async def _ask(self, path: str, body: Any = None, limit: float | None = None) -> bytes:
        limit = self.attempt_limit if limit is None else min(limit, self.attempt_limit)
        return await self.connection.ask(path, limit, body)

    async def _send(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Makes attempts until one succeeds. Raises a ServerError if all failed, or the server refuses the request."""
        try:
            result = await self.retries.send(attempt, self._failed)
        except Fault as fault:
            if fault.kind == "unreachable":
                what = f"does not answer (engine.url; waited {self.retries.limit:.0f} s, engine.wait_limit). Start it "
                what += f"with: {self._command()}"
            elif fault.kind == "rejected":
                what = f"cannot serve this run: {fault.whole}"
            else:
                what = "failed a request too often (engine.attempts, engine.wait_limit); the last failure was "
                what += fault.whole
            raise ServerError(f"vLLM at {self.connection.url} {what}") from None
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
                f"{self.retries.limit:.0f} s. To start it: {self._command()}"
            )

    def _command(self) -> str:
        assert self._needed is not None
        return serve_command(self._needed, self.model, self.max_length, self.connection.url)

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
                if snapshot.rank:
                    what = "it accepts no LoRA adapters (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora), or cannot "
                    body = {"lora_name": snapshot.name, "lora_path": str(snapshot.folder)}
                    await self._ask_able("/v1/load_lora_adapter", body, f"{what}read {snapshot.folder}")
                else:
                    await self._reload(snapshot)
                self._loads += 1
                if not await self._has(snapshot):
                    raise Fault("garbage", f"the server has not loaded {snapshot.name}, although it says so")
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
            raise Fault("garbage", f"max_model_len in the answer to /v1/models is {str(longest)[:20]!r}")
        if longest < self.max_length:
            what = f"its --max-model-len is {longest}, but the run needs rollout.max_length={self.max_length}"
            raise Fault("rejected", what)
        probe = {"model": card["id"], "prompt": [0], "max_tokens": 1, "temperature": 1.0, "logprobs": 0}
        for token in (0, 1):
            answer = await self._ask("/v1/completions", {**probe, "ignore_eos": True, "allowed_token_ids": [token]})
            what = "the server's completions contain no log-probs"
            logprob = _parsed(answer, lambda body: float(body["choices"][0]["logprobs"]["token_logprobs"][0]), what)
            if not abs(logprob) < 1e-3:
                what = "its log-probs are not those of the distribution that it samples from; start it with "
                raise Fault("rejected", what + "--logprobs-mode processed_logprobs")
        self._base, root = str(card["id"]), str(card.get("root") or self.model)
        if self._needed is not None and self._needed.rank and Path(root).resolve() != Path(self.model).resolve():
            self.say(
                f"warning: vLLM at {self.connection.url} serves {root}, but this run trains {self.model}; if their weights "
                "differ, start the server with the run's model"
            )

    async def _models(self) -> list[dict[str, Any]]:
        what = "the answer to /v1/models contains no list of models"
        answer = await self._ask("/v1/models", limit=_QUICK)
        cards = _parsed(answer, lambda body: [card for card in body["data"] if _NAME.fullmatch(card["id"])], what)
        if not cards:
            raise Fault("garbage", what)
        return cards

    async def _has(self, snapshot: Snapshot) -> bool:
        if snapshot.rank:
            return snapshot.name in {card["id"] for card in await self._models()}
        what = "it cannot reload all weights, as policy.lora.r=0 requires; set VLLM_SERVER_DEV_MODE=1 where it starts"
        answer = await self._ask_able("/weight_info", None, what, _QUICK)
        version = _parsed(answer, lambda body: body.get("weight_version"), "the answer to /weight_info has no version")
        return bool(version == snapshot.name)

    async def _ask_able(self, path: str, body: Any, what: str, limit: float | None = None) -> bytes:
        """As :meth:`_ask`; ``what`` says what a server without ``path`` lacks."""
        try:
            return await self._ask(path, body, limit)
        except Fault as fault:
            if fault.kind != "missing":
                raise
            raise Fault("rejected", what, said=fault.said) from None

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
                raise Fault("garbage", f"the answer to {path} contains an error: {plain_body(answer)}")
