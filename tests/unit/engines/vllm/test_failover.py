"""Remote servers that die, hang or return while the run goes on with the other servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.engines.vllm.test_engine import SAMPLING, change, expected, name_of
from tests.unit.engines.vllm.test_faults import until

from turnwise.engines.engine import Sample
from turnwise.engines.vllm.faults import ServerError
from turnwise.engines.vllm.local import free_port
from turnwise.engines.vllm.patience import Patience

Make = Callable[..., Any]
KEY = "a-key"
HASTY = Patience(attempt_limit=20.0, backoff=0.01, longest_backoff=0.1, health_limit=1.0, away_limit=30.0)


class Remote:
    """A server in a process of its own, which can be killed and started again at its address."""

    def __init__(self) -> None:
        self.port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        served = Path(__file__).with_name("served.py")
        options = ["--port", str(self.port), "--host", "127.0.0.1", "--max-model-len", "64"]
        options += ["--logprobs-mode", "processed_logprobs"]
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(served), *options], env={**os.environ, "VLLM_API_KEY": KEY}
        )

    def names(self) -> set[str]:
        """The names of the base model and of the loaded adapters."""
        request = urllib.request.Request(f"{self.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        return {card["id"] for card in json.loads(urllib.request.urlopen(request, timeout=20).read())["data"]}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def remotes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Remote]]:
    monkeypatch.setenv("TURNWISE_VLLM_KEY", KEY)
    servers = [Remote(), Remote()]
    yield servers
    for server in servers:
        server.end()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def written(served: ModuleType, name: str, first: int, numbers: range) -> list[Sample]:
    return [expected(served, name, [first, i], i) for i in numbers]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_living_server_answers_for_a_dead_one_until_it_is_back(
    served: ModuleType, make_engine: Make, policy: Any, remotes: list[Remote], how: signal.Signals
) -> None:
    """A server dies with unfinished requests, misses a weight sync, returns, and gets new states."""
    hangs = how == signal.SIGSTOP
    patience = Patience(
        attempt_limit=3.0 if hangs else 20.0, backoff=0.01, longest_backoff=0.1, health_limit=1.0, away_limit=60.0
    )
    engine = make_engine(*(server.url for server in remotes), patience=patience)
    engine.load_weights(policy, 0)
    engine.said.clear()  # at the start it may have waited for both
    (old,) = remotes[1].names() - {"policy"}
    nodes = [engine.open([4, i]) for i in range(20)]
    remotes[0].process.send_signal(signal.SIGSTOP)  # so that its requests are unfinished
    thread, results = in_thread(lambda: engine.sample(nodes, SAMPLING, list(range(20))))
    until(lambda: engine.servers[1].tally["requests"] == 10)
    if not hangs:
        remotes[0].end()
    thread.join(timeout=60)
    assert results == [written(served, old, 4, range(20))]  # the same seeds, whoever answers
    assert engine.servers[0].tally["requests"] == 0 and engine.servers[1].tally["requests"] == 20
    (warning,) = [line for line in engine.said if "warning" in line]
    assert remotes[0].url in warning and "engine.patience.health_limit" in warning and "other servers" in warning
    assert not [line for line in engine.said if "the run waits for it" in line]

    change(policy)
    began = time.monotonic()
    engine.load_weights(policy, 1)
    assert time.monotonic() - began < 10
    (new,) = remotes[1].names() - {"policy"}
    nodes = [engine.open([5, i]) for i in range(20)]
    assert engine.sample(nodes, SAMPLING, list(range(20))) == written(served, new, 5, range(20))
    assert engine.servers[1].tally["requests"] == 40 and engine.report()["set_aside"] == 1

    if hangs:
        remotes[0].process.send_signal(signal.SIGCONT)
    else:
        remotes[0].start()
    until(lambda: not engine.servers[0].aside)
    until(lambda: remotes[0].names() == {"policy", new})  # what it missed is loaded, and what it had is unloaded
    nodes = [engine.open([6, i]) for i in range(20)]
    assert engine.sample(nodes, SAMPLING, list(range(20))) == written(served, new, 6, range(20))
    assert engine.servers[0].tally["requests"] > 0
    assert len([line for line in engine.said if "gets requests again" in line]) == 1


def test_a_weight_sync_goes_on_without_a_dead_server(
    served: ModuleType, make_engine: Make, policy: Any, remotes: list[Remote]
) -> None:
    engine = make_engine(*(server.url for server in remotes), patience=HASTY)
    engine.load_weights(policy, 0)
    remotes[0].end()
    change(policy)
    engine.load_weights(policy, 1)
    (name,) = remotes[1].names() - {"policy"}
    assert name.startswith("v1-") and engine.servers[0].aside
    nodes = [engine.open([4, i]) for i in range(10)]
    assert engine.sample(nodes, SAMPLING, list(range(10))) == written(served, name, 4, range(10))


class Switch:
    """Two servers that stop answering and answer again on request. ``asked`` has what each of them sampled with."""

    def __init__(self, served: ModuleType, stack: ExitStack) -> None:
        self.away = [threading.Event(), threading.Event()]
        self.servers = [stack.enter_context(served.serve(fault=self._fault(event))) for event in self.away]
        self.asked: list[list[str]] = [[], []]
        for server, asked in zip(self.servers, self.asked, strict=True):
            server.write = self._write(served, asked)

    def _fault(self, event: threading.Event) -> Callable[[str, int], str | None]:
        return lambda path, nth: "refuse" if event.is_set() else None

    def _write(self, served: ModuleType, asked: list[str]) -> Callable[..., Any]:
        def write(name: str, body: dict[str, Any]) -> Any:
            asked.append(name)
            return served.written(name, body["prompt"], body["seed"], body["max_tokens"])

        return write


@pytest.fixture
def switch(served: ModuleType) -> Iterator[Switch]:
    with ExitStack() as stack:
        yield Switch(served, stack)


@pytest.mark.parametrize("full", [False, True])
def test_a_server_that_returns_with_old_weights_samples_with_the_current_ones_only(
    served: ModuleType, make_engine: Make, policy: Any, switch: Switch, full: bool
) -> None:
    weights = policy.get_base_model() if full else policy
    one, two = switch.servers
    engine = make_engine(one.url, two.url, patience=HASTY)
    engine.load_weights(weights, 0)
    switch.away[0].set()
    engine.sample([engine.open([4, i]) for i in range(4)], SAMPLING, list(range(4)))
    change(weights)
    engine.load_weights(weights, 1)
    current = two.weights if full else name_of(two)
    assert not switch.asked[0] and (one.weights != current if full else current not in one.adapters)
    switch.away[0].clear()
    until(lambda: not engine.servers[0].aside)
    samples = engine.sample([engine.open([5, i]) for i in range(20)], SAMPLING, list(range(20)))
    assert samples == written(served, current, 5, range(20))
    assert set(switch.asked[0]) == {current}  # it gets the new states, because it has no old ones


def test_requests_of_one_action_move_too(served: ModuleType, make_engine: Make, policy: Any, switch: Switch) -> None:
    engine = make_engine(*(server.url for server in switch.servers), patience=HASTY)
    engine.load_weights(policy, 0)
    name = name_of(switch.servers[1])
    with engine.held() as view:
        nodes = [view.open([4, i]) for i in range(6)]
        switch.away[0].set()

        async def all_of_them() -> list[Sample]:
            return await asyncio.gather(*(view.request(node, SAMPLING, i) for i, node in enumerate(nodes)))

        samples = asyncio.run(all_of_them())
        assert samples == written(served, name, 4, range(6)) and {sample.version for sample in samples} == {0}
        twin = view.fork(nodes[0])  # further actions of a moved history
        (further,) = view.sample([twin], SAMPLING, [9])
        assert further == expected(served, name, [4, 0, *samples[0].ids], 9)


@pytest.mark.parametrize("back", [None, 0, 1])
def test_if_all_servers_are_away_the_run_waits_for_any_of_them(
    served: ModuleType, make_engine: Make, policy: Any, switch: Switch, back: int | None
) -> None:
    patience = Patience(backoff=0.01, longest_backoff=0.1, health_limit=0.3, away_limit=2.0 if back is None else 30.0)
    engine = make_engine(*(server.url for server in switch.servers), patience=patience)
    engine.load_weights(policy, 0)
    name = name_of(switch.servers[0])
    nodes = [engine.open([4, i]) for i in range(6)]
    for event in switch.away:
        event.set()
    if back is None:
        with pytest.raises(ServerError, match=r"no vLLM server answered at .* within 2 s .*engine.patience.away_limit"):
            engine.sample(nodes, SAMPLING, list(range(6)))
    else:
        thread, results = in_thread(lambda: engine.sample(nodes, SAMPLING, list(range(6))))
        until(lambda: any("the run waits for it" in line for line in engine.said))
        switch.away[back].clear()
        thread.join(timeout=30)
        assert results == [written(served, name, 4, range(6))]
        assert engine.servers[back].tally["requests"] == 6


def with_the_first_aside(make_engine: Make, policy: Any, switch: Switch) -> Any:
    """Returns an engine with weights 0, whose first server has been set aside because it does not answer."""
    engine = make_engine(*(server.url for server in switch.servers), patience=HASTY)
    engine.load_weights(policy, 0)
    switch.away[0].set()
    engine.sample([engine.open([4, i]) for i in range(4)], SAMPLING, list(range(4)))
    return engine


def test_a_server_that_returns_unfit_gets_no_requests(
    served: ModuleType, make_engine: Make, policy: Any, switch: Switch
) -> None:
    engine, one = with_the_first_aside(make_engine, policy, switch), switch.servers[0]
    one.mode = "raw_logprobs"
    switch.away[0].clear()
    until(lambda: any("a run cannot use it" in line and "processed_logprobs" in line for line in engine.said))
    engine.sample([engine.open([5, i]) for i in range(4)], SAMPLING, list(range(4)))
    assert engine.servers[0].aside and not switch.asked[0]
    one.mode = "processed_logprobs"
    until(lambda: not engine.servers[0].aside)


def test_a_server_that_is_away_for_a_moment_keeps_its_states(
    served: ModuleType, make_engine: Make, policy: Any, switch: Switch
) -> None:
    engine = make_engine(*(server.url for server in switch.servers), patience=Patience(backoff=0.01, health_limit=20.0))
    engine.load_weights(policy, 0)
    nodes = [engine.open([4, i]) for i in range(4)]
    switch.away[0].set()
    threading.Timer(0.5, switch.away[0].clear).start()
    engine.sample(nodes, SAMPLING, list(range(4)))
    assert engine.servers[0].tally["requests"] == 2 and not any("warning" in line for line in engine.said)


def test_weights_that_a_returning_server_loads_too_late_are_unloaded(
    served: ModuleType, make_engine: Make, policy: Any, switch: Switch
) -> None:
    engine, one = with_the_first_aside(make_engine, policy, switch), switch.servers[0]
    change(policy)
    engine.load_weights(policy, 1)
    loading, go_on, fault = threading.Event(), threading.Event(), one.fault

    def slow(path: str, nth: int) -> str | None:
        if path == "/v1/load_lora_adapter":
            one.lock.release()  # the server answers other requests meanwhile
            loading.set()
            go_on.wait(20)
            one.lock.acquire()
        return fault(path, nth)

    one.fault = slow
    switch.away[0].clear()
    assert loading.wait(20)
    change(policy)
    engine.load_weights(policy, 2)
    go_on.set()
    until(lambda: not engine.servers[0].aside)
    until(lambda: list(one.adapters) == [name_of(switch.servers[1])])
