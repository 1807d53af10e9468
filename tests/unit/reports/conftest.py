"""A run folder as the main job leaves it, with numbers that hang together."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

ACTIONS = [
    "go to shelf 1",
    "open drawer 2",
    "take mug 1 from desk 1",
    "go to desk 1",
    "look",
    "heat mug 1 with microwave 1",
]
SUITES = ["constraints", "arithmetic", "algebra", "programs", "science", "choice", "choice_b", "translation"]
SYSTEM = "You act in a household. Answer with one command a turn."
ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, a drawer 2, a drawer 1, "
    "a microwave 1, a safe 1, and a shelf 1.\nYour task is to: put a hot mug in safe."
)


def write_run(folder: Path, *, method="pivotrl", seed=0, shift=0.0, scale="tiny", name=None, states=400) -> Path:
    """Write a finished synthetic run; ``shift`` moves its result in points."""
    rng = np.random.default_rng([seed, *method.encode()])
    folder.mkdir(parents=True)
    config = {
        "method": method,
        "seed": seed,
        "paths": {"out": str(folder)},
        "states": {"_target_": "turnwise.methods.pivotrl.Pivots", "lambda_diff": 0.9, "samples": 8},
        "loss": {"clip_low": 0.2, "clip_high": 0.2, "kl": 0.01},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "result.json").write_text(json.dumps(result(method, seed, shift + rng.normal(0, 1), scale, name)))
    _metrics(folder, rng)
    _profile(folder, rng, states)
    _rollouts(folder, rng)
    return folder


def result(method="pivotrl", seed=0, shift=0.0, scale="tiny", name=None) -> dict:
    def change(base, delta, tasks, **more):
        delta = round(delta, 1)
        interval = [round(delta - 6.1, 1), round(delta + 6.4, 1)]
        return {"base": base, "after": base + delta, "delta": delta, "delta_ci95": interval, "tasks": tasks, **more}

    splits = {"seen": change(35.4, 22.9 + shift, 96), "unseen": change(32.3, 18.8 + shift, 96)}
    base = dict(zip(SUITES, [61.0, 48.5, 39.0, 52.0, 70.5, 55.0, 44.0, 66.5], strict=True))
    moves = dict(zip(SUITES, [0.5, -1.5, 0.0, 1.0, -2.5, 0.5, 1.5, -3.5], strict=True))
    return {
        "method": method,
        "env": "household",
        "scale": scale,
        "seed": seed,
        "name": name,
        "in_domain": {
            **change(33.9, 20.8 + shift, 192),
            "by_split": splits,
            "greedy": change(33.9, 20.8 + shift, 192, by_split=splits),
            "sampled": change(27.1, 21.4 + shift, 192),
            "pass_at_k": {"1": change(27.1, 21.4 + shift, 192), "4": change(51.0, 17.2 + shift, 192)},
        },
        "ood": {
            "base": base,
            "after": {suite: base[suite] + moves[suite] for suite in SUITES},
            "mean_change": -0.5,
            "mean_change_ci95": [-1.6, 0.7],
            "change_ci95": {suite: [moves[suite] - 3.0, moves[suite] + 3.2] for suite in SUITES},
            "items": dict.fromkeys(SUITES, 200),
        },
        "rollout_turns": 20_480,
        "rollout_tokens": 225_280,
        "seconds": {"profile": 92.4, "rollout": 118.0, "update": 143.7, "evaluation": 101.2, "report": 2.1},
        "config_hash": "9f2c41d7a0b3",
        "commit": "4f0c1d2e3b4a5968778695a4b3c2d1e0f9a8b7c6",
        "versions": {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.23.0"},
        "finished": True,
    }


def _metrics(folder, rng):
    with (folder / "metrics.jsonl").open("w") as stream:
        for i in range(40):
            row = {"iteration": i, "phase": "train", "time": 3.1 * i}
            row |= {"train/reward_mean": 0.55 + 0.25 * (1 - np.exp(-i / 15)) + rng.normal(0, 0.015)}
            row |= {"train/reward_std": 0.36 - 0.003 * i, "train/kl_ref": 0.0009 * i, "train/entropy": 0.9 - 0.008 * i}
            row |= {"train/repeat_rate": 0.21 - 0.002 * i, "train/grad_norm": 0.8 + rng.normal(0, 0.1)}
            row |= {
                "train/clip_fraction": 0.01 + 0.001 * i,
                "train/effective_groups": 0.9 - 0.008 * i,
                "train/loss": 0.0,
            }
            stream.write(json.dumps(row) + "\n")
            if i % 8 == 0:
                solved = {"eval/seen/success": 35 + i * 0.58, "eval/unseen/success": 32 + i * 0.47}
                stream.write(json.dumps({"iteration": i, "phase": "eval", "time": 3.1 * i, **solved}) + "\n")


def _profile(folder, rng, states):
    chance = np.where(rng.random(states) < 0.5, 1.0, rng.beta(0.8, 0.8, states))
    rewards = (rng.random((states, 8)) < chance[:, None]).astype(float)
    mean, variance = rewards.mean(1), rewards.var(1)
    table = {
        "state_id": [f"train/{i}#3" for i in range(states)],
        "trajectory": [f"train/{i}" for i in range(states)],
        "turn": [3] * states,
        "rewards": rewards.tolist(),
        "strict": rewards.tolist(),
        "mean": mean,
        "variance": variance,
        "actions": [["look"] * 8] * states,
        "kept": (variance > 0) & (mean < 0.9),
    }
    pq.write_table(pa.table(table), folder / "profile.parquet")


def _rollouts(folder, rng):
    (folder / "rollouts").mkdir()
    for iteration in range(40):
        with (folder / "rollouts" / f"{iteration:04d}.jsonl").open("w") as stream:
            for state in range(4):
                stream.write(json.dumps(local_tree(rng, iteration, state)) + "\n")


def local_tree(rng, iteration=0, state=0, samples=8) -> dict:
    """A tree of depth one: samples that branch at an expert's turn and end there."""
    rewards = (rng.random(samples) < 0.6).astype(float)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ROOM}]
    for action in ACTIONS[:2]:
        messages += said(action)
    turns = [
        {
            "parent": -1,
            "text": ACTIONS[int(rng.integers(0, 3)) + (0 if rewards[i] else 3)],
            "observation": "",
            "reward": rewards[i],
            "done": False,
            "logprob": -float(rng.gamma(2)),
            "advantage": advantages[i],
            "info": {},
        }
        for i in range(samples)
    ]
    task = f"train/{state:06d}"
    return {
        "iteration": iteration,
        "state": {"id": f"{task}#2", "turn": 2, "task": task, "messages": messages},
        "expert": ACTIONS[0],
        "turns": turns,
        "rewards": {"total": rewards.tolist()},
    }


def said(action) -> list[dict]:
    return [{"role": "assistant", "content": action}, {"role": "user", "content": f"You {action}."}]


def deep_tree(depth=5) -> dict:
    """Two rollouts that share one turn and then part: one long, one short."""
    turns = [turn(-1, "go to desk 1")] + [turn(i, f"step {i}") for i in range(depth)] + [turn(0, "look", -1.0)]
    state = {"id": "train/9#0", "turn": 0, "task": "train/9", "messages": [{"role": "user", "content": ROOM}]}
    return {"iteration": 3, "state": state, "expert": None, "turns": turns, "rewards": {"total": [1.0, 0.0]}}


def turn(parent, text, advantage=1.0) -> dict:
    return {
        "parent": parent,
        "text": text,
        "observation": f"You {text}.",
        "reward": 0.0,
        "done": False,
        "logprob": -0.5,
        "advantage": advantage,
        "info": {},
    }


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    """A finished run; the tests share it and only read it, but for its report."""
    return write_run(tmp_path_factory.mktemp("runs") / "pivotrl" / "seed0")


@pytest.fixture(name="write_run")
def _write_run():
    """Writes a run of its own for a test that changes it."""
    return write_run


@pytest.fixture
def make() -> SimpleNamespace:
    """Builders of a run's pieces."""
    return SimpleNamespace(write_run=write_run, result=result, local_tree=local_tree, deep_tree=deep_tree, turn=turn)
