"""engine=vllm over vLLM itself, against the tree engine and the trainer: the shipped policy, one server for all tests.

TURNWISE_VLLM_PYTHON names the Python of vLLM's environment (`make test-vllm`); without it there is nothing to test.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import torch
from tests.conformance.vllm_server import KEY, PYTHON, free_port, serving, start, wait

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.engines.vllm import VllmEngine, save_snapshot
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.methods.states import task_starts
from turnwise.models.policy import load_policy, plain_copy
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import tiny_path
from turnwise_worlds.household import HouseholdEnv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(PYTHON is None, reason="TURNWISE_VLLM_PYTHON is not set: vLLM itself is NOT tested"),
]
ENV = HouseholdEnv(horizon=20)
NEAR = 1e-3
SLOW = {"attempt_limit": 3000.0, "wait_limit": 3000.0}  # a machine may do other things meanwhile


def policy(rank: int, seed: int = 0):
    """The shipped policy with an adapter whose delta is not zero, or with all its weights moved a little."""
    model, tokenizer = load_policy(tiny_path(), rank=rank, alpha=32, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if rank == 0 or "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.02 if rank else 0.003))
    return model, ChatTokens(tokenizer)


def engine_of(url: str, folder: Path) -> VllmEngine:
    return VllmEngine(policy(0)[1].stop_ids, str(tiny_path()), folder, print, url, **SLOW)


@pytest.fixture(scope="module", autouse=True)
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_VLLM_KEY", KEY)
        yield


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    with serving(str(tiny_path()), str(tiny_path()), folder) as url:
        engine = engine_of(url, folder)
        yield engine
        engine.shutdown()


@pytest.fixture(scope="module")
def histories():
    _, chat = policy(0)
    opening = Openings(ENV, chat)
    return [opening(task)[1] for task in ENV.tasks("seen", 8)]


def trainer_logprobs(model, history: list[int], sample: Sample, temperature: float) -> list[float]:
    """By a plain forward pass of Hugging Face's model, adapters merged."""
    plain = plain_copy(model)
    plain.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = plain(torch.tensor([history + sample.ids])).logits[0, len(history) - 1 : -1]
    logp = (logits / (temperature or 1.0)).log_softmax(-1)
    return logp.gather(1, torch.tensor(sample.ids)[:, None])[:, 0].tolist()


def worst(model, histories, samples, temperature: float) -> float:
    """The greatest difference between the engine's log-probs and the trainer's."""
    return max(
        abs(ours - theirs)
        for history, sample in zip(histories, samples, strict=True)
        for ours, theirs in zip(trainer_logprobs(model, history, sample, temperature), sample.logprobs, strict=True)
    )


def sampled(engine: VllmEngine, histories, sampling: Sampling, **options) -> list[Sample]:
    nodes = [engine.open(history) for history in histories]
    samples = engine.sample(nodes, sampling, list(range(len(nodes))), **options)
    engine.close(nodes)
    return samples


def metric(engine: VllmEngine, name: str) -> float:
    page = urllib.request.urlopen(f"{engine.url}/metrics", timeout=30).read().decode()
    return sum(float(value) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", page, re.MULTILINE))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probs_are_the_trainers(engine, histories, temperature):
    model, _ = policy(16)
    engine.load_weights(model, 0)
    rolled = [history for history in histories for _ in range(4)]
    samples = sampled(engine, rolled, Sampling(temperature=temperature))
    assert worst(model, rolled, samples, temperature) < NEAR
    if temperature:
        assert len({tuple(sample.ids) for sample in samples}) > len(histories)  # seeds differ, so do draws
        assert [s.ids for s in sampled(engine, rolled, Sampling(temperature=temperature))] == [s.ids for s in samples]


def test_greedy_actions_and_log_probs_are_the_tree_engines(engine, histories):
    model, chat = policy(16)
    engine.load_weights(model, 0)
    tree = TreeEngine(chat.stop_ids)
    tree.load_weights(model, 0)
    greedy = Sampling(temperature=0)
    right = tree.sample([tree.open(history) for history in histories], greedy, [0] * len(histories))
    found = sampled(engine, histories, greedy)
    assert [sample.ids for sample in found] == [sample.ids for sample in right]
    for one, other in zip(found, right, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=NEAR)


def test_greedy_episodes_are_the_tree_engines(engine):
    model, chat = policy(16)
    tree = TreeEngine(chat.stop_ids)
    opening = Openings(ENV, chat)
    states = task_starts([*ENV.tasks("seen", 8), *ENV.tasks("unseen", 8)], lambda task: opening(task)[1])
    played = []
    for each in (tree, engine):
        each.load_weights(model, 0)
        player = Player(each, ENV, chat, Sampling(temperature=0), max_length=2048)
        played.append(player.play(states, Uniform(1), Never(), "greedy"))
    for ours, theirs in zip(*played, strict=True):
        assert [turn.text for turn in ours.turns] == [turn.text for turn in theirs.turns]
        assert [turn.reward for turn in ours.turns] == [turn.reward for turn in theirs.turns]
        assert [turn.info.get("won") for turn in ours.turns] == [turn.info.get("won") for turn in theirs.turns]
    assert sum(len(tree.turns) for tree in played[0]) > 50


def test_each_version_is_sampled_from_its_own_weights(engine, histories):
    names = []
    for version in range(1, 4):
        model, _ = policy(16, seed=version)
        engine.load_weights(model, version)
        assert worst(model, histories, sampled(engine, histories, Sampling()), 1.0) < NEAR
        page = urllib.request.Request(f"{engine.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        (name,) = set(re.findall(r"v\d+-[0-9a-f]{16}", urllib.request.urlopen(page, timeout=30).read().decode()))
        assert name.startswith(f"v{version}-")
        names.append(name)
    assert len(set(names)) == 3


def test_prefixes_are_shared(engine, histories):
    model, _ = policy(16)
    engine.load_weights(model, 7)
    history = histories[0] * 3
    before = metric(engine, "prefix_cache_hits_total")
    sampled(engine, [history] * 2, Sampling(max_tokens=1))
    sampled(engine, [history] * 2, Sampling(max_tokens=1))
    assert metric(engine, "prefix_cache_hits_total") - before > len(history)


def test_a_closed_node_is_given_up_by_the_server(engine, histories):
    model, _ = policy(16)
    engine.load_weights(model, 0)
    engine.end_ids, ends = frozenset(), engine.end_ids  # so that it writes on
    try:
        nodes = [engine.open(history[:64]) for history in histories[:2]]
        closing = threading.Timer(2.0, engine.close, (nodes,))
        began = time.monotonic()
        closing.start()
        samples = engine.sample(nodes, Sampling(max_tokens=3900), [0, 1])
        assert samples == [Sample([], [], truncated=True)] * 2
        taken = time.monotonic() - began
        assert taken < 10
        deadline = time.monotonic() + 10
        while metric(engine, "num_requests_running"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        engine.end_ids = ends


def test_a_server_that_is_killed_and_started_again_changes_nothing(histories, tmp_path):
    port, log = free_port(), tmp_path / "vllm.log"
    model, _ = policy(16)
    rolled = [history for history in histories for _ in range(8)]
    process = start(str(tiny_path()), str(tiny_path()), port, log)
    try:
        wait(process, port, log)
        engine = engine_of(f"http://127.0.0.1:{port}", tmp_path)
        engine.load_weights(model, 0)
        right = sampled(engine, rolled, Sampling())
        killed = threading.Event()

        def kill(place: int, sample: Sample) -> None:
            if not killed.is_set():
                killed.set()
                process.kill()

        samples: list[list[Sample]] = []
        thread = threading.Thread(target=lambda: samples.append(sampled(engine, rolled, Sampling(), on_sample=kill)))
        thread.start()
        assert killed.wait(600)
        process.wait(timeout=60)
        process = start(str(tiny_path()), str(tiny_path()), port, log)
        thread.join(timeout=3000)
        assert [sample.ids for sample in samples[0]] == [sample.ids for sample in right]
        assert worst(model, rolled, samples[0], 1.0) < NEAR
        engine.shutdown()
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_all_weights_are_reloaded(histories, tmp_path):
    snapshot = save_snapshot(policy(0)[0], 0, tmp_path / "start")  # with its own output head, as a run writes weights
    with serving(str(snapshot.folder), str(tiny_path()), tmp_path, rank=0) as url:
        engine = engine_of(url, tmp_path)
        for version in range(3):
            model, _ = policy(0, seed=version)
            engine.load_weights(model, version)
            assert worst(model, histories, sampled(engine, histories, Sampling()), 1.0) < NEAR
        engine.shutdown()
