"""The engine against a real HTTP server that fails in every way, is away, or is the wrong one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.vllm import ServerError

Make = Callable[..., Any]
SAMPLING = Sampling(max_tokens=8)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def expected(served: ModuleType, name: str, prompt: list[int], seed: int, most: int = 8) -> Sample:
    ids, logprobs = served.written(name, prompt, seed, most)
    return Sample(ids, logprobs, truncated=ids[-1] != served.END)


def seeds(bodies: list[dict[str, Any]]) -> set[int]:
    return {body["seed"] for body in bodies if "seed" in body}


def name_of(server: Any) -> str:
    (name,) = server.adapters
    return str(name)


KINDS = {
    "refuse": "unreachable",
    "cut": "unreachable",
    "stream": "garbage",
    "hang": "timeout",
    "429": "rate_limited",
    "500": "server_error",
    "503": "server_error",
    "408": "timeout",
    "garbage": "garbage",
    "list": "garbage",
    "short": "garbage",
    "other_prompt": "garbage",
    "no_logprobs": "garbage",
}


@pytest.mark.parametrize("fault", KINDS)
def test_a_fault_is_asked_again_and_changes_nothing(
    served: ModuleType, make_engine: Make, policy: Any, fault: str
) -> None:
    def sometimes(path: str, nth: int) -> str | None:
        return fault if path == "/v1/completions" and nth % 5 == 3 else None  # two are the examination

    with served.serve(fault=sometimes) as server:
        engine = make_engine(server.url, attempts=6, attempt_limit=0.5 if fault == "hang" else 20.0)
        engine.load_weights(policy, 0)
        # seeds whose actions have several tokens, so that one that is cut short is seen
        seeds = [s for s in range(60) if len(served.written(name_of(server), [4, 5], s, 8)[0]) > 1][:12]
        samples = engine.sample([engine.open([4, 5]) for _ in seeds], SAMPLING, seeds)
        assert samples == [expected(served, name_of(server), [4, 5], seed) for seed in seeds]
        report = engine.report()
        assert report["requests"] == 12
        assert report[f"faults/{KINDS[fault]}"] > 0


@pytest.mark.parametrize("how", ["from on_sample", "from another thread"])
def test_a_closed_node_is_cancelled_at_the_server(served: ModuleType, make_engine: Make, policy: Any, how: str) -> None:
    slow = {1, 2}
    with served.serve(delay=lambda body: 20.0 if body.get("seed") in slow else 0.0) as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)
        nodes = [engine.open([4]) for _ in range(3)]
        began = time.monotonic()
        if how == "from on_sample":
            samples = engine.sample(nodes, SAMPLING, [0, 1, 2], lambda i, sample: engine.close(nodes[1:]))
        else:
            thread = threading.Timer(0.3, engine.close, (nodes[1:],))
            thread.start()
            samples = engine.sample(nodes, SAMPLING, [0, 1, 2])
            thread.join()
        assert time.monotonic() - began < 10
        assert samples[0] == expected(served, name_of(server), [4], 0)
        assert samples[1:] == [Sample([], [], truncated=True)] * 2
        # both are read again each time: what the client sent and left may reach the server a moment later
        until(lambda: seeds(server.dropped) == seeds(server.bodies) & slow)


def test_a_server_that_comes_back_empty_gets_its_adapter_again(
    served: ModuleType, make_engine: Make, policy: Any
) -> None:
    with served.serve() as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)
        name, port = name_of(server), server.server_address[1]
        node = engine.open([4, 5])
        (first,) = engine.sample([node], SAMPLING, [0])
    engine_thread: list[list[Sample]] = []
    thread = threading.Thread(target=lambda: engine_thread.append(engine.sample([node], SAMPLING, [1])))
    thread.start()
    until(lambda: engine.said)
    with served.serve(port=port) as again:
        thread.join(timeout=30)
        assert again.adapters.keys() == {name}
    assert engine_thread == [[expected(served, name, [4, 5, *first.ids], 1)]]


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"key": "secret"}, "TURNWISE_VLLM_KEY"),
        ({"mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"max_model_len": 32}, "--max-model-len"),
        ({"max_model_len": "4096"}, "max_model_len"),
        ({"fault": lambda path, nth: "404" if "lora" in path else None}, "--enable-lora"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(
    served: ModuleType, make_engine: Make, policy: Any, settings: dict[str, Any], remedy: str
) -> None:
    with served.serve(**settings) as server, pytest.raises(ServerError) as caught:
        make_engine(server.url).load_weights(policy, 0)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("lora", [True, False])
def test_a_server_that_is_not_there_is_told_with_the_command(
    make_engine: Make, make_model: Make, served: ModuleType, lora: bool
) -> None:
    with served.serve() as server:
        url = server.url
    engine = make_engine(url, wait_limit=0.1)
    with pytest.raises(ServerError) as caught:
        engine.load_weights(make_model("qwen3", lora=lora), 0)
    _, _, command = str(caught.value).partition("vllm serve ")
    words = command.split()
    assert url in str(caught.value) and ["--port", url.rpartition(":")[2]] == words[words.index("--port") :][:2]
    assert ("--enable-lora" in words) == lora
    assert words[0] == "policy" if lora else (Path(words[0]) / "model-head.safetensors").exists()


def test_requests_wait_together_for_a_server_that_is_lost_and_is_back_later(
    served: ModuleType, make_engine: Make, policy: Any
) -> None:
    lost = threading.Event()
    with served.serve(fault=lambda path, nth: "refuse" if lost.is_set() else None) as server:
        engine = make_engine(server.url, wait_limit=0.5)
        engine.load_weights(policy, 0)
        nodes = [engine.open([4, n]) for n in range(8)]
        lost.set()

        async def all_of_them() -> list[Any]:
            asked = [engine.request(node, SAMPLING, node) for node in nodes]
            return await asyncio.gather(*asked, return_exceptions=True)

        began = time.monotonic()
        assert all(isinstance(error, ServerError) for error in asyncio.run(all_of_them()))
        assert time.monotonic() - began < 3  # one after the other would be 4 s
        assert len(engine.said) == 1
        lost.clear()
        assert engine.sample(nodes[:1], SAMPLING, [0])[0].ids
        lost.set()
        threading.Timer(0.2, lost.clear).start()
        engine.load_weights(policy, 1)
        assert name_of(server).startswith("v1-")


@pytest.mark.parametrize(
    ("fault", "path", "full"), [("lost", "/v1/load_lora_adapter", False), ("worker", "/collective_rpc", True)]
)
def test_weights_that_a_server_says_it_loaded_are_asked_for(
    served: ModuleType, make_engine: Make, policy: Any, full: bool, fault: str, path: str
) -> None:
    weights = policy.get_base_model() if full else policy
    with served.serve(fault=lambda asked, nth: fault if asked == path and nth == 1 else None) as server:
        make_engine(server.url).load_weights(weights, 0)  # the second attempt succeeds
        assert server.seen[path] == 2
    with served.serve(fault=lambda asked, nth: fault if asked == path else None) as server, pytest.raises(ServerError):
        make_engine(server.url).load_weights(weights, 0)
