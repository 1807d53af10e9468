"""The engine over real HTTP: what is asked, what comes back, and whose weights wrote it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Request, Sample, Sampling, schedule_of
from turnwise.engines.vllm import save_snapshot
from turnwise.evaluation.suites import TOGETHER, play_tasks
from turnwise.models.policy import load_policy
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player, run_to_end
from turnwise.shipped import ASSETS
from turnwise_worlds.household import HouseholdEnv

# -- engine ------------------------------------------------------------------------------------------------------------

Make = Callable[..., Any]
SAMPLING = Sampling(max_tokens=8)


def expected(served: ModuleType, name: str, prompt: list[int], seed: int, most: int = 8) -> Sample:
    ids, logprobs = served.written(name, prompt, seed, most)
    return Sample(ids, logprobs, truncated=ids[-1] != served.END)


def name_of(server: Any) -> str:
    (name,) = server.adapters
    return str(name)


def change(policy: Any) -> None:
    """As an update does."""
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)


def test_histories_go_out_as_ids_and_actions_come_back_as_ids(
    served: ModuleType, make_engine: Make, policy: Any
) -> None:
    with served.serve() as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 3)
        root = engine.open([4, 5, 6])
        forks = [engine.fork(root) for _ in range(4)]
        told: list[tuple[int, Sample]] = []
        samples = engine.sample(forks, SAMPLING, [11, 12, 13, 2**64 - 1], lambda i, sample: told.append((i, sample)))
        name = name_of(server)
        assert engine.version == 3 and name.startswith("v3-")
        seeds = [11, 12, 13, 2**63 - 1]  # a seed has 64 bits, vLLM's has a sign
        assert samples == [expected(served, name, [4, 5, 6], seed) for seed in seeds]
        assert sorted(told, key=lambda pair: pair[0]) == list(enumerate(samples))
        engine.extend(forks[0], [7, 8])
        (second,) = engine.sample(forks[:1], SAMPLING, [14])
        assert second == expected(served, name, [4, 5, 6, *samples[0].ids, 7, 8], 14)
        assert {
            key: server.bodies[-1][key] for key in ("temperature", "top_p", "top_k", "min_p", "stop_token_ids")
        } == {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "stop_token_ids": [served.END],
        }


def test_each_version_has_a_name_of_its_own_and_the_one_before_is_unloaded(
    served: ModuleType, make_engine: Make, policy: Any, tmp_path: Path
) -> None:
    with served.serve() as server:
        engine = make_engine(server.url)
        names = []
        for version in range(4):
            engine.load_weights(policy, version)
            names.append(name_of(server))
            change(policy)
        assert len(set(names)) == 4
        assert server.unloaded == names[:3]
        assert sorted(folder.name for folder in (tmp_path / "engine" / "weights").iterdir()) == sorted(names[2:])
        # a version whose update was skipped has equal weights, and a name of its own all the same
        engine.load_weights(policy, 4)
        four = name_of(server)
        engine.load_weights(policy, 5)
        assert four.startswith("v4-") and name_of(server).startswith("v5-")
        engine.shutdown()
        assert not server.adapters


def test_nothing_goes_on_under_the_next_version(served: ModuleType, make_engine: Make, policy: Any) -> None:
    with served.serve() as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)
        node = engine.open([4, 5])
        engine.sample([node], SAMPLING, [0])
        engine.load_weights(policy, 1)
        for use in (lambda: engine.sample([node], SAMPLING, [1]), lambda: engine.fork(node)):
            with pytest.raises(RuntimeError, match="closed"):
                use()
        engine.close([node])  # as a player does that ends


def test_full_weights_are_reloaded_and_checked(served: ModuleType, make_engine: Make, make_model: Make) -> None:
    model = make_model("qwen3", lora=False)
    with served.serve() as server:
        engine = make_engine(server.url)
        engine.load_weights(model, 0)
        folder, mark = server.weights, server.weight_version
        assert Path(folder).name == mark and (Path(folder) / "model-head.safetensors").exists()
        (first,) = engine.sample([engine.open([4])], SAMPLING, [0])
        assert first == expected(served, folder, [4], 0)
        # the server is begun again behind our back: nothing that it writes now may count
        server.weights, server.weight_version = "base", "default"
        (second,) = engine.sample([engine.open([4])], SAMPLING, [0])
        assert second == first and server.weights == folder
        assert engine.report()["faults/missing"] == 1


def test_the_key_comes_from_the_environment(
    served: ModuleType, make_engine: Make, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWISE_VLLM_KEY", "secret")
    with served.serve(key="secret") as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)
        engine.sample([engine.open([4])], SAMPLING, [0])
        assert "secret" not in repr(vars(engine))


def test_a_cancelled_request_ends_at_the_server_too(served: ModuleType, make_engine: Make, policy: Any) -> None:
    with served.serve(delay=lambda body: 20.0 if body["prompt"][0] == 9 else 0.0) as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)

        async def one_of_two() -> int:
            schedule = schedule_of(engine, SAMPLING, lambda count: None)
            long = asyncio.create_task(schedule.sample(Request(0, engine.open([9, 9]), 0)))
            await schedule.sample(Request(1, engine.open([4, 4]), 1))
            while not any(body["prompt"][0] == 9 for body in server.bodies):
                await asyncio.sleep(0.01)
            long.cancel()
            await asyncio.wait([long])
            return schedule.cancelled

        began = time.monotonic()
        assert run_to_end(one_of_two()) == 1
        while not server.dropped and time.monotonic() - began < 15:
            time.sleep(0.01)
        assert [body["prompt"] for body in server.dropped] == [[9, 9]]


# -- evaluation --------------------------------------------------------------------------------------------------------

COUNT = TOGETHER + 8  # more episodes than an engine in this process plays at a time


class FirstTogether:
    """Once ``counts`` is set, delays each answer until the server has ``COUNT`` requests at the same time, at most 30 s."""

    def __init__(self) -> None:
        self.waiting = threading.Barrier(COUNT)
        self.counts = self.met = False

    def __call__(self, body: dict[str, Any]) -> float:
        if self.counts and not self.met:
            with suppress(threading.BrokenBarrierError):
                self.waiting.wait(30)
                self.met = True
        return 0.0


def test_a_server_gets_the_requests_of_all_episodes(
    served: ModuleType, make_engine: Callable[..., Any], policy: Any
) -> None:
    delay, done = FirstTogether(), list[int]()
    chat, world = ChatTokens(load_policy(ASSETS)[1]), HouseholdEnv(horizon=2)
    with served.serve(delay=delay) as server:
        engine = make_engine(server.url, max_length=4096)
        engine.load_weights(policy, 0)
        delay.counts = True  # loading asks the server too
        player = Player(engine, world, chat, Sampling(max_tokens=4))
        tasks = world.tasks("seen", COUNT)
        episodes = play_tasks(player, Openings(world, chat), tasks, 1, "sampled", "eval", done.append)
    assert delay.met
    assert [episode.task for episode in episodes] == [task.id for task in tasks]
    assert done == [1] * COUNT


# -- save weights ------------------------------------------------------------------------------------------------------


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([[5, 6, 7]])).logits
    return found


def test_an_adapter_is_what_peft_reads(make_model: Make, tmp_path: Path) -> None:
    model = make_model("qwen3", lora=True)
    snapshot = save_snapshot(model, 4, tmp_path)
    assert snapshot.rank and snapshot.folder == (tmp_path / snapshot.name).resolve()
    assert {file.name for file in snapshot.folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    again = PeftModel.from_pretrained(make_model("qwen3", lora=False), snapshot.folder)
    assert torch.allclose(logits(again), logits(model), atol=1e-6)


@pytest.mark.parametrize("shard", [None, "20KB"])
def test_all_weights_are_a_model_with_a_head_of_its_own(
    make_model: Make, tmp_path: Path, shard: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("qwen3", lora=False)
    assert model.config.tie_word_embeddings
    if shard:  # as large models are written
        plain = model.save_pretrained
        monkeypatch.setattr(
            model, "save_pretrained", lambda *args, **given: plain(*args, **given, max_shard_size=shard)
        )
    snapshot = save_snapshot(model, 0, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(snapshot.folder)
    assert not snapshot.rank and not again.config.tie_word_embeddings
    assert again.lm_head.weight.data_ptr() != again.model.embed_tokens.weight.data_ptr()
    assert torch.equal(logits(again), logits(model))
    assert model.config.tie_word_embeddings  # the policy itself stays as it is
