"""Lists the parts of `make gpu`, the most valuable first: what each part measures, its command, and its time limit."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
VLLM = Path(os.environ.get("TURNWISE_VLLM_PYTHON", BENCHMARKS.parent / ".venv-vllm" / "bin" / "python"))
DRY = "cpu"
WHOLE = 28 * 60.0  # seconds of all parts together; the rest of 30 minutes is for starting them


@dataclass(frozen=True, slots=True)
class Part:
    """One command with a time limit.

    Attributes:
        says: what the command measures.
        limit: seconds after which the command is ended.
        fresh: further options with which the command starts again instead of resuming (`again=true`).
    """

    name: str
    says: str
    command: tuple[str, ...]
    limit: float
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a part.

    Attributes:
        part, command: name and command of the part.
        status: ``done``, ``failed``, ``out of time`` or ``not here`` (a requirement is missing).
        reason: why the part is not done.
        seconds: duration of the part.
        result: the JSON object of the last output line.
        machine: the device, and the versions of libraries and code.
    """

    part: str
    command: list[str]
    status: str
    reason: str = ""
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)


# Sizes on a device. A group is a state and 16 actions; a tree is 4 rollouts of 8 turns, each continued twice.
# One pass of a peer has as many tokens as fit into 80 GB without recomputation: 2.6 MB a token at 0.6B, 7.3 MB at 4B.
UPDATE = {
    "qwen3-0.6b": (
        "--state 2048 --actions 16 --action 256 --row-tokens 8192 --group-tokens 16384 --turns 8 --tree-state 512 "
        "--tree-action 64 --tree-observation 64 --tree-row-tokens 16384 --tree-tokens 16384 --rounds 5 --tree-rounds 3"
    ),
    "qwen3-4b": (
        "--state 1024 --actions 16 --action 128 --row-tokens 4096 --group-tokens 4608 --turns 8 --tree-state 256 "
        "--tree-action 32 --tree-observation 32 --tree-row-tokens 8192 --tree-tokens 4608 --rounds 3 --tree-rounds 2"
    ),
}
ROLLOUT = {
    "qwen3-0.6b": "--horizon 4 --rounds 2 --max-length 2048 --continuous-rows 64 --continuous-tokens 4096",
    "qwen3-4b": "--horizon 5 --rounds 1 --max-length 2048 --continuous-rows 64 --continuous-tokens 4096",
}
LIMITS = {
    "tests": 100,
    "attention": 150,
    "attention_rows": 60,
    "update_0_6b": 150,
    "rollout_0_6b": 190,
    "update_4b": 180,
    "rollout_4b": 190,
    "recompute": 110,
    "paper_pivotrl": 130,
    "paper_trace": 130,
    "paper_selective": 130,
    "paper_awpo": 130,
}
STOP = 30  # seconds before its limit at which a row is asked to stop, so that it can save its results

# The same commands on a CPU, with the smallest possible sizes.
DRY_UPDATE = (
    "--state 16 --actions 3 --action 4 --roots 2 --branches 1 --turns 3 --tree-state 8 --tree-action 3 --tree-observation 3 "
    "--tree-rounds 1 --rounds 1 --peers padded trl trl_trie unsloth"
)
DRY_ROLLOUT = "--tasks 1 --group 2 --horizon 2 --rounds 1 --max-tokens 4 --max-length 1024 --continuous-rows 2"
DRY_LIMIT = 300.0


def parts_of(dry: bool, out: Path) -> list[Part]:
    """Returns all parts, for CUDA or as a dry run on a CPU. ``out`` contains a folder for each part."""
    on = ["--device", "cpu", "--shape", "qwen3-dry"] if dry else ["--device", "cuda", "--dtype", "bfloat16"]
    vllm = ["--vllm-python", str(VLLM)] if VLLM.exists() and not dry else []

    def part(name: str, says: str, script: str, options: Sequence[str]) -> Part:
        command = (sys.executable, str(BENCHMARKS / script), *options)
        return Part(name, says, command, DRY_LIMIT if dry else float(LIMITS[name]))

    def update(name: str, shape: str) -> Part:
        sizes = DRY_UPDATE if dry else f"--shape {shape} {UPDATE[shape]}"
        says = f"updates on {shape}: ours, padded, TRL's, TRL's packed trie and Unsloth's kernel"
        return part(name, says, "update.py", [*on, *sizes.split(), "--keep-going"])

    def rollout(name: str, shape: str) -> Part:
        sizes = DRY_ROLLOUT if dry else f"--shape {shape} {ROLLOUT[shape]}"
        says = f"rollouts on {shape}: ours, generate, continuous batching, TRL and vLLM"
        return part(name, says, "rollout.py", [*on, *sizes.split(), *vllm, "--keep-going"])

    def paper(name: str) -> Part:
        word = name.removeprefix("paper_")
        count = ["--iterations", "2" if dry else "10"]
        limit = ["--limit", str(int(DRY_LIMIT if dry else LIMITS[name]) - STOP)]
        where = ["--device", "cpu" if dry else "cuda", "--folder", str(out / name)]
        says = f"iterations of one row of {word}, scale=paper"
        return replace(part(name, says, "gpu_rows.py", [word, *where, *count, *limit]), fresh=("--fresh",))

    lengths = ["--lengths", "160", "320", "--rounds", "1"] if dry else []
    several = ["--batch", "4", *(lengths or ["--lengths", "512", "1024", "1448", "2048", "2896"])]
    rows = ["--rows", "2", "--row", "64", "--rounds", "1"] if dry else ["--shape", "qwen3-4b"]
    return [
        part("tests", "the tests that are marked gpu", "gpu_tests.py", []),
        part("attention", "attention over packed trees by every plan", "attention.py", [*on, *lengths]),
        part("attention_rows", "attention over four packed trees at once", "attention.py", [*on, *several]),
        update("update_0_6b", "qwen3-0.6b"),
        rollout("rollout_0_6b", "qwen3-0.6b"),
        update("update_4b", "qwen3-4b"),
        rollout("rollout_4b", "qwen3-4b"),
        part("recompute", "update.recompute and update.offload", "recompute.py", [*on, *rows]),
        *(paper(name) for name in LIMITS if name.startswith("paper_")),
    ]
