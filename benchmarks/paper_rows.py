"""Defines one row of each paper at ``scale=paper`` with synthetic data and servers, made small enough for this machine.

Data formats, model families and chat templates are those of the papers, and the weights are random. A test runs the
rows at the smallest size, and ``make gpu`` (gpu_rows.py) runs ten iterations of each row on a device.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from judge_server import serve
from paper_models import model_folder
from turnwise_study.sweeps.jobs import ask, jobs

ROOT = Path(__file__).resolve().parents[1]

# The changes of all rows, and the reason for each. The functions in ROWS set a row's data, policy and servers.
SHRUNK = {
    "engine=tree": "no vLLM is here",
    "trainer.accelerator=cpu": "no GPU",
    "trainer.devices=1": "one process",
    "trainer.num_nodes=1": "one process",
    "trainer.strategy=auto": "shards need several processes",
    "trainer.precision=32-true": "of a CPU",
    "policy.dtype=float32": "of a CPU",
    "iterations=2": "two iterations show that the second follows from the first",
    "rollout.states=4": "a handful of states",
    "rollout.sampling.max_tokens=12": "random weights seldom end a reply",
    "eval.tasks=2": "a task of each split",
    "eval.attempts=1": "beside the greedy one",
    "eval.items=1": "of each suite that is out of domain",
}


@dataclass(frozen=True)
class Row:
    """A row of a sweep with the data that a user must give, and the settings that are reduced only for this row."""

    sweep: str
    name: str
    family: str
    given: tuple[str, ...]  # overrides that a user must give (docs/cluster.md)
    smaller: tuple[str, ...]
    without: tuple[
        str, ...
    ] = ()  # keys of an environment that is not installed here and is replaced by another environment
    server: Any = None  # the judge, which counts its requests

    def overrides(self, shrunk: Sequence[str]) -> list[str]:
        """Returns the row's overrides as train.py composes them, with ``shrunk`` and the row's own reductions.

        Raises:
            ValueError: the row lacks something that it needs to run.
        """
        asked = ask([f"sweep={self.sweep}", "scale=paper", f"rows={self.name}", "seed=0", *self.given], ROOT / "conf")
        (job,) = jobs(asked)
        if job.cannot is not None:
            raise ValueError(f"{self.sweep}, row {self.name}: {job.cannot}")
        own = [item for item in job.overrides if not item.startswith(("name=", *self.without))]
        return list({item.partition("=")[0]: item for item in (*own, *shrunk, *self.smaller)}.values())


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def conversations(path: Path, count: int = 8) -> Path:
    """Writes dialogues of customers and an agent with tools and reasoning, as scripts/prepare_data.py writes them."""
    tool = {
        "type": "function",
        "function": {
            "name": "find_order",
            "description": "Looks an order up.",
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
        },
    }
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
        records.append({"id": f"c{number}", "messages": messages, "tools": [tool], "task": None, "success": None})
    return lines(path, records)


def questions(path: Path, count: int) -> Path:
    """Writes questions in the format in which FlashRAG publishes them."""
    return lines(
        path,
        [
            {"id": f"{path.stem}_{i}", "question": f"Who made the {path.stem} {i}?", "golden_answers": [f"Maker {i}"]}
            for i in range(count)
        ],
    )


class Retriever(BaseHTTPRequestHandler):
    """Answers Search-R1's /retrieve with the same page for every query."""

    def log_message(self, *args: Any) -> None:
        """Prints nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        page = {"document": {"contents": '"Comet"\nA comet is made of ice.'}, "score": 0.5}
        data = json.dumps({"result": [[page] * asked["topk"] for _ in asked["queries"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def retrieval(folder: Path) -> Iterator[str]:
    """Yields the URL of a running retriever. Its port is stored in ``folder``, because a resumed run needs that URL."""
    kept = folder / "port"
    server = ThreadingHTTPServer(("127.0.0.1", int(kept.read_text()) if kept.exists() else 0), Retriever)
    kept.write_text(str(server.server_port))
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/retrieve"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def pivotrl(folder: Path, tau2: bool = False, large: bool = False) -> Iterator[Row]:
    """Yields a row of PivotRL's Table 1, tau2.

    Conversations come from a file, calls are verified exactly, the policy is a thinking mixture of experts, and a model
    plays the user.
    """
    with serve(answer=lambda messages: "Thank you, that is all.") as server:
        given = (
            f"data.file={conversations(folder / 'conversations.jsonl', 64 if large else 8)}",
            f"env.endpoint.client.url={server.url}",
        )
        smaller = [
            "states.keep=all",
            "env.horizon=3",
        ]  # random weights never make a demonstrated call, so no state has mixed rewards
        smaller += [] if large else ["states.k=2", "allocator.group_size=2", "rollout.trajectories=2"]
        smaller += [] if tau2 else ["env=household"]  # tau2, which is used only for evaluation, is an optional package
        without = () if tau2 else ("env.user=", "env.free=", "env.endpoint.")
        yield Row("pivotrl_tab1", "pivotrl", "qwen3_moe_thinking", given, tuple(smaller), without, server)


@contextmanager
def awpo(folder: Path, large: bool = False) -> Iterator[Row]:
    """Yields a row of AWPO's Table 2.

    All weights are trained on graded tool dialogues with rationales, which an endpoint judges. The evaluation uses
    BFCL's own tasks.
    """
    with serve(answer=lambda messages: '{"score": 0.5}') as server:
        file = conversations(folder / "reasoned.jsonl", 64 if large else 8)
        given = (f"data.file={file}", f"judge.client.url={server.url}")
        smaller = ("allocator.group_size=4", f"rollout.states={64 if large else 8}", "env.horizon=2")
        yield Row("awpo_tab2", "awpo_4b", "qwen3_instruct", given, smaller, server=server)


@contextmanager
def trace(folder: Path, large: bool = False) -> Iterator[Row]:
    """Yields a row of TRACE's Table 1.

    Multi-hop questions have FlashRAG's format, pages come from a server, a predictor allocates, and all weights are
    trained on trees.
    """
    budget = 64 if large else 8
    files = {split: questions(folder / f"{split}.jsonl", budget) for split in ("train", "seen", "unseen")}
    named = ", ".join(f"{split}: {path}" for split, path in files.items())
    critic = model_folder("qwen3", folder / "critic")
    with retrieval(folder) as url:
        given = (f"env.files={{{named}}}", f"env.retriever={url}", "trainer.strategy.offload=false")
        smaller = [f"allocator.budget={budget}", f"states.count={budget}", f"predictor.model={critic}"]
        smaller += [f"rollout.states={budget // 2}"] if large else []
        yield Row("trace_tab1", "active_active", "qwen3", given, (*smaller, "predictor.autocast=false"))


@contextmanager
def selective(folder: Path, large: bool = False, python: str | None = None) -> Iterator[Row]:
    """Yields a row of Selective Rollout's Table 5: episodes with the published gate.

    ``python`` is the interpreter of an environment with ALFWorld's engine (an extra with GPL parts). If it is None, the
    household replaces ALFWorld.
    """
    smaller = [f"states.count={60 if large else 8}", f"env.python={python}" if python else "env=household"]
    smaller += ["env.horizon=8"] if large else ["env.horizon=3", "allocator.group_size=2", "gate.k=1"]
    given = ("env.games=null",)  # generated games for the same engine, because the official games must be downloaded
    yield Row(
        "selective_tab5", "gated", "qwen2", given, tuple(smaller), () if python else ("env.games=", "env.workers=")
    )


PAPERS: dict[str, Callable[..., AbstractContextManager[Row]]] = {
    "pivotrl": pivotrl,
    "awpo": awpo,
    "trace": trace,
    "selective": selective,
}
