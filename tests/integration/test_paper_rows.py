"""One row of each paper at ``scale=paper``, from the row's own composition to its report, shrunken to what a test can run."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from tests.conformance.conftest import PYTHON as ALFWORLD
from tests.integration.paper_models import model_folder

from turnwise.config_check import check_config
from turnwise.papers.jobs import ask, jobs
from turnwise.reports.result import read_result
from turnwise.training.main import run

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "benchmarks" / "judge_server.py"

# All that is changed of a row, and why. What its data, policy and servers are called stands in ROWS.
SHRUNK = {
    "engine=tree": "no vLLM is here",
    "~engine.local": "of vLLM",
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


@dataclass(frozen=True)
class Row:
    """A row of a sweep with the data that a person gives it, and what of it alone has to be smaller."""

    sweep: str
    name: str
    family: str
    given: tuple[str, ...]  # what docs/cluster.md has a person give
    smaller: tuple[str, ...]


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def conversations(path: Path) -> Path:
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
    for number in range(8):
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
def retrieval() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Retriever)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/retrieve"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def chat_server() -> Any:
    spec = importlib.util.spec_from_file_location("judge_server", SERVER)
    assert spec is not None and spec.loader is not None
    module = sys.modules["judge_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def played(tmp_path: Path, composed: Callable[[list[str]], DictConfig]) -> Callable[[Row], DictConfig]:
    """Composes a row as train.py and plan.py do, shrinks it, checks it and runs it; the configuration that ran."""

    def play(row: Row) -> DictConfig:
        asked = ask([f"sweep={row.sweep}", "scale=paper", f"rows={row.name}", "seed=0", *row.given], ROOT / "conf")
        (job,) = jobs(asked)
        assert job.cannot is None  # all that it lacked is given
        model = model_folder(row.family, tmp_path / "model")
        own = [item for item in job.overrides if not item.startswith("name=")]
        places = [f"policy.model={model}", f"paths.out={tmp_path / 'run'}", f"paths.cache={tmp_path / 'cache'}"]
        cfg = composed([*own, *SHRUNK, *row.smaller, *places])
        assert cfg.scale == "paper"
        check_config(cfg)
        run(cfg)
        return cfg

    return play


def trained(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "train"]

