"""One row of each paper at ``scale=paper`` with data and servers that are made up, shrunken to what is there.

The data has the papers' formats, the policies their families and chat templates, and the weights are random. A test runs the rows
at their smallest, and ``make gpu`` (gpu_rows.py) ten iterations of each on a device.
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
from turnwise.experiments.command_line import ask
from turnwise.experiments.jobs import jobs

ROOT = Path(__file__).resolve().parents[1]

# All that is changed of a row, and why. What its data, policy and servers are called stands in ROWS.
SHRUNK = {
    "engine=tree": "no vLLM is here",
    "trainer.accelerator=cpu": "no GPU",
    "trainer.devices=1": "one process",
    "trainer.num_nodes=1": "one process",
    "trainer.strategy=auto": "shards need several processes",
    "trainer.precision=32-true": "of a CPU",
    "policy.dtype=float32": "of a CPU",
    "trainer.max_epochs=2": "two iterations show that the second follows from the first",
    "rollout.states=4": "a handful of states",
    "rollout.sampling.max_tokens=12": "random weights seldom end a reply",
    "eval.tasks=2": "a task of each split",
    "eval.attempts=1": "beside the greedy one",
    "eval.items=1": "of each suite that is out of domain",
}
NO_LOCAL = "~engine.local"  # settings of vLLM that the scales of three papers give


@dataclass(frozen=True)
class Row:
    """A row of a sweep with the data that a person gives it, and what of it alone has to be smaller."""

    sweep: str
    name: str
    family: str
    given: tuple[str, ...]  # what docs/cluster.md has a person give
    smaller: tuple[str, ...]
    without: tuple[str, ...] = ()  # keys of an environment that is not installed here, and that another stands in for
    server: Any = None  # the judge, which counts what it is asked

    def overrides(self, shrunk: Sequence[str]) -> list[str]:
        """Returns the row's own composition as train.py and plan.py make it, with ``shrunk`` and what of it alone is smaller.

        Raises:
            ValueError: it lacks something still.
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
    """Customers and an agent with tools, as scripts/prepare_data.py writes them; the agent's reasoning beside its replies."""
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
    """As FlashRAG publishes them."""
    return lines(
        path,
        [
            {"id": f"{path.stem}_{i}", "question": f"Who made the {path.stem} {i}?", "golden_answers": [f"Maker {i}"]}
            for i in range(count)
        ],
    )


class Retriever(BaseHTTPRequestHandler):
    """Search-R1's /retrieve over pages that are as good as any."""

    def log_message(self, *args: Any) -> None:
        """Quiet."""

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
    """A running retriever. Its port is kept in ``folder``, because a run goes on only with the same address."""
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
    """Table 1, tau2: conversations of a file, calls verified one to one, a thinking mixture of experts, a model as the user."""
    with serve(answer=lambda messages: "Thank you, that is all.") as server:
        given = (
            f"data.file={conversations(folder / 'conversations.jsonl', 64 if large else 8)}",
            f"env.endpoint.client.url={server.url}",
        )
        smaller = [
            "states.keep=all",
            "env.horizon=3",
        ]  # random weights never make a demonstrated call: no state is mixed
        smaller += [] if large else ["states.k=2", "allocator.group_size=2", "rollout.trajectories=2"]
        smaller += [] if tau2 else ["env=household"]  # tau2, which evaluates alone here, is an extra
        without = () if tau2 else ("env.user=", "env.free=", "env.endpoint.")
        yield Row("pivotrl_tab1", "pivotrl", "qwen3_moe_thinking", given, tuple(smaller), without, server)


@contextmanager
def awpo(folder: Path, large: bool = False) -> Iterator[Row]:
    """Table 2: all weights on tool dialogues with rationales, graded, judged by an endpoint, evaluated on BFCL's own tasks."""
    with serve(answer=lambda messages: '{"score": 0.5}') as server:
        file = conversations(folder / "reasoned.jsonl", 64 if large else 8)
        given = (f"data.file={file}", f"judge.client.url={server.url}")
        smaller = ("allocator.group_size=4", f"rollout.states={64 if large else 8}", "env.horizon=2", NO_LOCAL)
        yield Row("awpo_tab2", "awpo_4b", "qwen3_instruct", given, smaller, server=server)


@contextmanager
def trace(folder: Path, large: bool = False) -> Iterator[Row]:
    """Table 1: multi-hop questions in FlashRAG's format, pages from a server, a predictor, trees of all weights."""
    budget = 64 if large else 8
    files = {split: questions(folder / f"{split}.jsonl", budget) for split in ("train", "seen", "unseen")}
    named = ", ".join(f"{split}: {path}" for split, path in files.items())
    critic = model_folder("qwen3", folder / "critic")
    with retrieval(folder) as url:
        given = (f"env.files={{{named}}}", f"env.retriever={url}")
        smaller = [f"allocator.budget={budget}", f"states.count={budget}", f"predictor.model={critic}"]
        smaller += [f"rollout.states={budget // 2}"] if large else []
        yield Row("trace_tab1", "active_active", "qwen3", given, (*smaller, "predictor.autocast=false", NO_LOCAL))


@contextmanager
def selective(folder: Path, large: bool = False, python: str | None = None) -> Iterator[Row]:
    """Table 5: episodes behind the published gate, in the household where ALFWorld's engine (an extra with GPL parts) is missing.

    Args:
        python: of the environment with that engine.
    """
    smaller = [NO_LOCAL, f"env.python={python}" if python else "env=household"]
    smaller += ["env.horizon=8"] if large else ["env.horizon=3", "allocator.group_size=2", "gate.k=1"]
    given = ("env.games=null",)  # generated games, played by the same engine: the official ones are a download
    yield Row("selective_tab5", "gated", "qwen2", given, tuple(smaller), () if python else ("env.games=",))


PAPERS: dict[str, Callable[..., AbstractContextManager[Row]]] = {
    "pivotrl": pivotrl,
    "awpo": awpo,
    "trace": trace,
    "selective": selective,
}
