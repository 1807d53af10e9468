"""Runs some iterations of one row of a paper at ``scale=paper``, with random weights, on the devices of this machine.

python benchmarks/gpu_rows.py pivotrl --folder outputs/gpu/paper_pivotrl
python benchmarks/gpu_rows.py trace --device cpu --iterations 2 --folder outputs/gpu-dry/paper_trace

Formats of data, model families and settings are the row's; data and servers are synthetic. The policy has the sizes of
Qwen3-0.6B on CUDA, tiny sizes on a CPU, and the shipped tokenizer. All changes of the row are listed under `changed` in the
last line. The tree engine samples. A run that is not finished at --limit is stopped by an interrupt signal; the same
command resumes it.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from common import ROOT, free, machine, positive, tokenizer_of
from turnwise.config.schema import compose_config
from turnwise_study.planning import GPUS, plan
from turnwise_study.sweeps.jobs import ask, jobs

GRACE = 20.0  # seconds that a stopped run gets to save its state
REPLY = 32  # greatest number of tokens of a reply on CUDA; random weights seldom end a reply

# On a CPU, rows are as small as they can be.
SMALL = [
    *("trainer.accelerator=cpu", "trainer.devices=1", "trainer.num_nodes=1", "trainer.strategy=auto"),
    *("trainer.precision=32-true", "policy.dtype=float32", "rollout.states=4", "rollout.sampling.max_tokens=12"),
]
LARGE_SIZES = {
    "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 3072, "vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
SMALL_SIZES = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 64, "head_dim": 24,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}


@dataclass(frozen=True)
class Row:
    """A row of a sweep: the overrides that a user must ``give`` (docs/cluster.md), those that make it ``smaller``, and the
    prefixes of overrides that belong to an environment which is replaced by the household, as it is an optional package.
    """

    sweep: str
    name: str
    family: str
    give: Sequence[str]
    smaller: Sequence[str]
    without: tuple[str, ...] = ()

    def overrides(self, shrunk: Sequence[str]) -> list[str]:
        """Returns the row's overrides as train.py composes them, with ``shrunk`` and the row's own reductions."""
        given = [f"sweep={self.sweep}", "scale=paper", f"rows={self.name}", "seed=0", *self.give]
        (job,) = jobs(ask(given, ROOT / "conf"))
        if job.cannot is not None:
            raise ValueError(f"{self.sweep}, row {self.name}: {job.cannot}")
        own = [item for item in job.overrides if not item.startswith(("name=", *self.without))]
        return list({item.partition("=")[0]: item for item in (*own, *shrunk, *self.smaller)}.values())


def pivotrl(folder: Path, large: bool, server: str) -> Row:
    """PivotRL's Table 1, tau2: conversations of a file, calls compared exactly, a mixture of experts."""
    file = conversations(folder / "conversations.jsonl", 64 if large else 8)
    # random weights never make a demonstrated call, so no state has mixed rewards
    smaller = ["states.keep=all", "env.horizon=3", "env=household"]
    smaller += [] if large else ["states.k=2", "allocator.group_size=2", "rollout.trajectories=2"]
    give = [f"data.file={file}", f"env.endpoint.client.url={server}/v1"]
    return Row("pivotrl_tab1", "pivotrl", "qwen3_moe", give, smaller, ("env.user=", "env.free=", "env.endpoint."))


def awpo(folder: Path, large: bool, server: str) -> Row:
    """AWPO's Table 2: all weights, graded tool dialogues with rationales, which an endpoint judges; BFCL's own tasks."""
    file = conversations(folder / "reasoned.jsonl", 64 if large else 8)
    smaller = ["allocator.group_size=4", f"rollout.states={64 if large else 8}", "env.horizon=2"]
    return Row("awpo_tab2", "awpo_4b", "qwen3", [f"data.file={file}", f"judge.client.url={server}/v1"], smaller)


def trace(folder: Path, large: bool, server: str) -> Row:
    """TRACE's Table 1: multi-hop questions, pages of a server, a predictor that allocates, all weights, on trees."""
    budget = 64 if large else 8
    files = {split: questions(folder / f"{split}.jsonl", budget) for split in ("train", "seen", "unseen")}
    named = ", ".join(f"{split}: {path}" for split, path in files.items())
    critic = model_folder("qwen3", folder / "critic", large=False)
    give = [f"env.files={{{named}}}", f"env.retriever={server}/retrieve", "trainer.strategy.offload=false"]
    smaller = [f"allocator.budget={budget}", f"states.count={budget}", f"predictor.model={critic}"]
    smaller += ["predictor.autocast=false", *([f"rollout.states={budget // 2}"] if large else [])]
    return Row("trace_tab1", "active_active", "qwen3", give, smaller)


def selective(folder: Path, large: bool, server: str) -> Row:
    """Selective Rollout's Table 5: episodes with the published gate."""
    smaller = [f"states.count={60 if large else 8}", "env=household"]
    smaller += ["env.horizon=8"] if large else ["env.horizon=3", "allocator.group_size=2", "gate.k=1"]
    give = ["env.games=null"]  # generated games, because the official games must be downloaded
    return Row("selective_tab5", "gated", "qwen2", give, smaller, ("env.games=", "env.workers="))


PAPERS: dict[str, Callable[[Path, bool, str], Row]] = {
    "pivotrl": pivotrl,
    "awpo": awpo,
    "trace": trace,
    "selective": selective,
}


def model_folder(family: str, folder: Path, large: bool, device: str = "cpu") -> Path:
    """Writes a model of a family with random weights, in bfloat16 if ``large``, and returns its folder."""
    if not (folder / "config.json").exists():
        tokenizer = tokenizer_of()
        sizes = {"vocab_size": len(tokenizer), **SMALL_SIZES, "max_position_embeddings": 65536}
        sizes |= EXPERTS if family == "qwen3_moe" else {}
        if large:
            sizes |= LARGE_SIZES | ({"num_experts": 8, "moe_intermediate_size": 768} if family == "qwen3_moe" else {})
        torch.manual_seed(0)
        with torch.device(device):
            config = AutoConfig.for_model(family, eos_token_id=tokenizer.eos_token_id, **sizes)
            model = AutoModelForCausalLM.from_config(config)
        (model.to(torch.bfloat16) if large else model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def conversations(path: Path, count: int) -> Path:
    """Writes dialogues of customers and an agent with tools and reasoning, as scripts/prepare_data.py writes them."""
    parameters = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    function = {"name": "find_order", "description": "Looks an order up.", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    records = []
    for number in range(count):
        call = {"type": "function", "function": {"name": "find_order", "arguments": {"order": f"W{number}"}}}
        messages = [
            {"role": "system", "content": "Help customers of a shop."},
            {"role": "user", "content": f"Where is my order W{number}?"},
            {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "I look it up."},
            {"role": "tool", "content": json.dumps({"order": f"W{number}", "status": "sent"})},
            {"role": "assistant", "content": "It was sent.", "reasoning_content": "The status is sent."},
            {"role": "user", "content": "Thank you."},
            {"role": "assistant", "content": "You are welcome.", "reasoning_content": "Nothing is left to do."},
        ]
        records.append({"id": f"c{number}", "messages": messages, "tools": tools, "task": None, "success": None})
    return lines(path, records)


def questions(path: Path, count: int) -> Path:
    """Writes questions in the format in which FlashRAG publishes them."""
    kind = path.stem
    asked = [{"id": f"{kind}_{i}", "question": f"Who made the {kind} {i}?", "golden_answers": [f"Maker {i}"]}
             for i in range(count)]  # fmt: skip
    return lines(path, asked)


class Handler(BaseHTTPRequestHandler):
    """Answers Search-R1's /retrieve with one page, and every chat with the same score."""

    def log_message(self, *args: Any) -> None:
        """Prints nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        page = {"document": {"contents": '"Comet"\nA comet is made of ice.'}, "score": 0.5}
        message = {"role": "assistant", "content": '{"score": 0.5}'}
        answer: dict[str, Any] = {"choices": [{"message": message, "finish_reason": "stop"}]}
        if self.path == "/retrieve":
            answer = {"result": [[page] * body["topk"] for _ in body["queries"]]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yields the URL of a running server. Its port is stored in ``folder``, because a resumed run needs that URL."""
    kept = folder / "port"
    server = ThreadingHTTPServer(("127.0.0.1", int(kept.read_text()) if kept.exists() else 0), Handler)
    kept.write_text(str(server.server_port))
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    args = parser().parse_args()
    if args.paper == "awpo" and find_spec("bfcl_eval") is None:
        print(json.dumps({"benchmark": "row", "not_here": "bfcl-eval is not installed; `make bfcl` does it"}))
        return
    large = args.device == "cuda"
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with served(folder) as server:
        row = PAPERS[args.paper](folder, large, server)
        model = model_folder(row.family, folder / "model", large, args.device)
        changed = changes(args)
        places = [f"policy.model={model}", f"paths.out={folder / 'run'}", f"paths.cache={folder / 'cache'}", "name=gpu"]
        given = [*row.overrides(changed), *places, "logger.wandb=null", *(["fresh=true"] if args.fresh else [])]
        memory = plan(compose_config(given, ROOT / "conf"), GPUS["h100"]).memory
        free()
        most: list[int] = []
        over = threading.Event()
        watch = threading.Thread(target=watched, args=(over, most), daemon=True)
        watch.start()
        seconds, status, last_lines = train(given, args.limit)
        over.set()
        watch.join()
    path = folder / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    done = [found for found in rows if found["phase"] == "train"]
    if status not in (0, None) or not done:
        ended = f"ended with status {status}" if status is not None else f"was stopped at its limit of {args.limit} s"
        sys.exit(f"train.py {ended} after {len(done)} iterations: {last_lines}")
    rollouts, updates = ([item.get(f"seconds/{name}", 0.0) for item in done] for name in ("rollout", "update"))
    last = done[-1]
    found = {
        "benchmark": "row",
        "sweep": row.sweep,
        "row": row.name,
        "engine": "tree",
        "iterations": len(done),
        "asked": args.iterations,
        "rollout_seconds": round(statistics.median(rollouts), 3),
        "update_seconds": round(statistics.median(updates), 3),
        "tokens": last.get("rollout/tokens"),
        "stored_tokens": last.get("train/stored_tokens"),
        "mismatch_max": last.get("train/mismatch_max"),
        "halvings": last.get("train/halvings"),
        "seconds": round(seconds, 1),
        "devices": torch.cuda.device_count() if large else 0,
        "device_bytes": max(most, default=None),
        "planned_bytes": int(memory["peak"]) if memory else None,
        "changed": [*changed, *row.smaller],
        "machine": machine(),
    }
    if len(done) < args.iterations:
        found["unfinished"] = f"{len(done)} of {args.iterations} iterations; the same command goes on"
    print(json.dumps(found))


def changes(args: argparse.Namespace) -> list[str]:
    """Returns the overrides that make a row small enough for this machine, on which no server runs."""
    # with random weights, all rewards of a group are equal, and these groups would otherwise be left out of the update
    always = ["engine=tree", f"iterations={args.iterations}", "advantage.zero_variance=keep"]
    always += ["eval.tasks=2", "eval.attempts=1", "eval.items=1"]
    if args.device == "cpu":
        return [*SMALL, *always]
    devices = torch.cuda.device_count()
    always += [f"rollout.sampling.max_tokens={REPLY}", "eval.every=0", "trainer.num_nodes=1"]
    return [*always, f"trainer.devices={devices}", *([] if devices > 1 else ["trainer.strategy=auto"])]


def watched(over: threading.Event, most: list[int]) -> None:
    """Records the memory in use on the first device twice per second: that of all processes."""
    while torch.cuda.is_available() and not over.wait(0.5):
        left, whole = torch.cuda.mem_get_info(0)
        most.append(whole - left)


def train(overrides: Sequence[str], limit: float) -> tuple[float, int | None, str]:
    """Runs train.py. Returns its seconds, its exit status (None if the limit stopped it) and its last lines."""
    began = time.monotonic()
    command = [sys.executable, str(ROOT / "train.py"), *overrides]
    process = subprocess.Popen(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    stopped = False
    try:
        _, text = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        stopped = True
        process.send_signal(signal.SIGINT)
        try:
            _, text = process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            _, text = process.communicate()
    print(text, file=sys.stderr)
    nonempty = [line.strip() for line in text.splitlines() if line.strip()]
    return time.monotonic() - began, None if stopped else process.returncode, " / ".join(nonempty[-3:])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("paper", choices=list(PAPERS))
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--iterations", type=positive, default=10)
    add("--limit", type=positive, default=110, metavar="S", help="seconds after which the run is stopped (110)")
    add("--fresh", action="store_true", help="move an earlier run in the folder aside and start a new run")
    add("--folder", type=Path, required=True, help="folder of the data, the weights and the run")
    return parser


if __name__ == "__main__":
    main()
