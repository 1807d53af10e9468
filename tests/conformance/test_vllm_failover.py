"""Two remote servers of vLLM itself, of which one is killed, misses a weight sync and returns.

TURNWISE_VLLM_PYTHON names the Python of vLLM's environment (`make test-vllm`); without it there is nothing to test.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_vllm import ENV, NEAR, PYTHON, policy, sampled, worst

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.vllm.engine import VllmEngine
from turnwise.engines.vllm.local import Local, free_port
from turnwise.engines.vllm.patience import Patience
from turnwise.models.shipped import tiny_path
from turnwise.rollouts.openings import Openings

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(PYTHON is None, reason="TURNWISE_VLLM_PYTHON is not set: vLLM itself is NOT tested"),
]


class Remote:
    """A server that ``scripts/serve.py`` runs, at an address that it keeps when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        arguments = ["--eager", "--kv-gb", "1", "--port", str(self.port), "--folder", str(self.folder)]
        self.process = subprocess.Popen([sys.executable, "scripts/serve.py", *arguments], cwd=ROOT)

    def names(self) -> str:
        return urllib.request.urlopen(f"{self.url}/v1/models", timeout=30).read().decode()

    def kill(self) -> None:
        self.process.kill()  # its guard ends the server
        self.process.wait()


@pytest.fixture
def remotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Remote]]:
    monkeypatch.delenv("TURNWISE_VLLM_KEY", raising=False)
    with ExitStack() as stack:
        servers = [Remote(tmp_path / str(number)) for number in range(2)]
        for server in servers:
            stack.callback(server.kill)
        yield servers


def test_a_killed_server_is_replaced_and_takes_part_again(remotes: list[Remote], tmp_path: Path) -> None:
    said: list[str] = []
    model, chat = policy(16)
    opening = Openings(ENV, chat)
    histories = [opening(task)[1] for task in ENV.tasks("seen", 8)]
    rolled = [history for history in histories for _ in range(8)]
    patience = Patience(health_limit=5.0, away_limit=3000.0, attempt_limit=3000.0)
    urls = [server.url for server in remotes]
    engine: Any = VllmEngine(chat.stop_ids, str(tiny_path()), tmp_path / "engine", said.append, Local(), patience, urls)
    try:
        engine.load_weights(model, 0)
        right = sampled(engine, rolled, Sampling())
        shares = [server.tally["requests"] for server in engine.servers]
        assert min(shares) > 0
        killed = threading.Event()

        def kill(place: int, sample: Sample) -> None:
            if not killed.is_set():
                killed.set()
                remotes[0].kill()

        first = sampled(engine, rolled, Sampling(), on_sample=kill)
        second = sampled(engine, rolled, Sampling())
        assert [sample.ids for sample in first] == [sample.ids for sample in second] == [sample.ids for sample in right]
        assert worst(model, rolled, second, 1.0) < NEAR
        assert len([line for line in said if "the other servers get its requests" in line]) == 1

        changed, _ = policy(16, seed=1)
        began = time.monotonic()
        engine.load_weights(changed, 1)
        assert time.monotonic() - began < 60
        third = sampled(engine, rolled, Sampling())
        assert worst(changed, rolled, third, 1.0) < NEAR

        remotes[0].start()
        while engine.servers[0].aside:
            assert remotes[0].process.poll() is None
            time.sleep(0.5)
        before = engine.servers[0].tally["requests"]
        fourth = sampled(engine, rolled, Sampling())
        assert [sample.ids for sample in fourth] == [sample.ids for sample in third]
        assert worst(changed, rolled, fourth, 1.0) < NEAR
        assert engine.servers[0].tally["requests"] > before
        name = engine.servers[0].snapshot.name
        assert name.startswith("v1-") and all(
            name in server.names() and "v0-" not in server.names() for server in remotes
        )
    finally:
        engine.shutdown()
