"""Serves a policy with vLLM, with the settings that engine=vllm needs.

export TURNWISE_VLLM_KEY=...        the token that runs send; without it, every user of this machine can use the server
python scripts/serve.py --model Qwen/Qwen3-4B --lora-rank 16 --max-length 8192
python train.py engine=vllm policy=qwen3_4b "engine.urls=[http://127.0.0.1:8000]"

vLLM is installed in a Python environment of its own (requirements-vllm.txt). Arguments after -- are passed to `vllm
serve` unchanged. The server ends with this program: press Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

from turnwise.console import number
from turnwise.endpoints import is_local, key_from
from turnwise.engines.vllm.faults import ServerError
from turnwise.engines.vllm.local import Local, Process
from turnwise.errors import InputError
from turnwise.models.shipped import weights_of
from turnwise.programs import options, program

KEY = "TURNWISE_VLLM_KEY"
POLL, TELL = 0.5, 10.0  # seconds between two checks, and between two lines of progress


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add(
        "--model",
        default="tiny",
        help="a folder, a name on the Hugging Face hub or a shipped base (conf/base); default tiny",
    )
    add(
        "--host",
        default="127.0.0.1",
        help=f"address of the server; if other machines can reach the address, {KEY} is required (default 127.0.0.1)",
    )
    add("--port", type=int, default=8000)
    add(
        "--python",
        default=os.environ.get("TURNWISE_VLLM_PYTHON", ".venv-vllm/bin/python"),
        help="Python interpreter that has vLLM (default $TURNWISE_VLLM_PYTHON, else .venv-vllm/bin/python)",
    )
    dtypes = ("float32", "bfloat16", "float16")
    add("--dtype", choices=dtypes, default="float32", help="policy.dtype of the run (default float32)")
    add(
        "--max-length",
        type=number(2, 1e9, whole=True),
        default=4096,
        help="rollout.max_length of the run (default 4096)",
    )
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--lora-rank", type=int, default=16, help="policy.lora.r of the run (default 16)")
    weights.add_argument(
        "--full-weights",
        action="store_true",
        help="for runs with policy.lora.r=0: runs can replace all weights of the server; only on 127.0.0.1",
    )
    add(
        "--staleness",
        type=number(0, 8, whole=True),
        default=0,
        help="value of rollout.staleness of the run; the server gets a place for the adapter of each collection (default 0)",
    )
    add("--rows", type=int, default=256, help="maximum number of sequences decoded together (default 256)")
    add("--devices", help="GPUs to use, such as 0,1 (default: all)")
    add("--kv-gb", type=int, help="memory for keys and values in GiB, only on a CPU")
    add(
        "--eager",
        action="store_true",
        help="do not compile the model: the start takes half the time, but each step is slower",
    )
    add("--folder", default="outputs/serve", help="folder for the server's log (default outputs/serve)")
    add(
        "--start-limit",
        type=number(1, 1e6),
        default=900.0,
        help="seconds within which the server must answer (default 900)",
    )
    return parser


def process_of(args: argparse.Namespace, arguments: list[str], key: str | None) -> Process:
    """Returns the server that the options describe. The server is not started.

    Raises:
        InputError: an option cannot be used, or other machines could reach the server without a token.
    """
    if not 1 <= args.port <= 65535:
        raise InputError(f"--port {args.port}: the port must be a number from 1 to 65535")
    url = f"http://{args.host}:{args.port}"
    if not is_local(url) and key is None:
        raise InputError(
            f"--host {args.host}: other machines can reach this address, so a token is required; set {KEY} on this "
            "machine and where runs are started"
        )
    if not is_local(url) and args.full_weights:
        raise InputError(
            "--full-weights: requests that replace weights are not protected by a token, so they are not allowed on "
            f"{args.host}; use a LoRA adapter, or an address of this machine only (--host 127.0.0.1)"
        )
    try:
        local = Local(
            args.python,
            devices=None if args.devices is None else [args.devices],
            dtype=args.dtype,
            lora_rank=0 if args.full_weights else args.lora_rank,
            rows=args.rows,
            kv_gb=args.kv_gb,
            ahead=args.staleness,
            eager=args.eager,
            arguments=arguments,
        )
        if not (args.full_weights or args.lora_rank):
            raise ValueError("lora_rank must be at least 1; for policy.lora.r=0 use --full-weights")
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-', 1)}") from error
    if not Path(args.python).exists():
        raise InputError(
            f"--python {args.python}: this file does not exist. Install vLLM in its own Python environment:\n"
            "  python3 -m venv .venv-vllm && .venv-vllm/bin/pip install -r requirements-vllm.txt"
        )
    folder = Path(args.folder)
    model = weights_of(args.model)
    if args.full_weights:
        model = untied(model, args.dtype, folder)
    return Process(
        local, model, args.max_length, folder / f"vllm-{args.port}.log", key=key, host=args.host, port=args.port
    )


def untied(model: str, dtype: str, folder: Path) -> str:
    """Returns a folder with a copy of the model whose output head is a separate weight.

    Runs transfer weights in this form (``engines.vllm.save_weights``).
    """
    from turnwise.engines.vllm.save_weights import save
    from turnwise.models.policy import load_policy

    policy, tokenizer = load_policy(model, dtype)
    snapshot = save(policy, 0, folder / "weights")
    tokenizer.save_pretrained(snapshot.folder)
    return str(snapshot.folder)


def wait(process: Process, limit: float) -> None:
    """Waits until the server answers, and prints a line of progress from time to time.

    Raises:
        ServerError: the server has ended, or does not answer within ``limit`` seconds.
    """
    began = told = time.monotonic()
    print(f"starting vLLM at {process.url}; its log is {process.log}", flush=True)
    while not healthy(process.url):
        now = time.monotonic()
        if not process.alive():
            raise ServerError(f"vLLM did not start. Its log is {process.log}, which ends in:\n{process.ending()}")
        if now - began > limit:
            raise ServerError(f"vLLM did not answer within {limit:.0f} s (--start-limit); read its log {process.log}")
        if now - told >= TELL:
            told = now
            print(f"  {now - began:4.0f} s: {last_line(process.log)}", flush=True)
        time.sleep(POLL)
    took = f"{time.monotonic() - began:.0f} s"
    print(f"ready after {took}; runs use this server with engine=vllm 'engine.urls=[{process.url}]'", flush=True)


def healthy(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def last_line(log: Path) -> str:
    """Returns the last line of the server's log, cut to the width of a terminal."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return lines[-1].rpartition("] ")[2][:100] if lines else ""


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 stopped; 1 the server died later; 2 an argument is unusable or no server started."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    args = parser().parse_args(arguments[:cut])
    key = key_from(KEY)
    try:
        process = process_of(args, arguments[cut + 1 :], key)
        if key is None:
            print(f"no token: every user of this machine can use the server; set {KEY} to require one", flush=True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _end)
        try:
            process.start()
            wait(process, args.start_limit)
            while process.alive():
                time.sleep(POLL)
            print(f"vLLM has ended. Its log is {process.log}, which ends in:\n{process.ending()}", file=sys.stderr)
            return 1
        finally:
            process.stop()
    except KeyboardInterrupt:
        return 0


def _end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
