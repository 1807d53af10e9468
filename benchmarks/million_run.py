"""Reads, profiles and selects as in a run, with a stub instead of the policy; one process of million.py.

python benchmarks/million_run.py FILE FOLDER K           prints one JSON object
python benchmarks/million_run.py FILE FOLDER K SAMPLES   kills itself when more than SAMPLES are requested
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from idle import Idle
from memory import status
from turnwise.algo.states.batches import Batches
from turnwise.config.check import check_config
from turnwise.config.schema import compose_config
from turnwise.console import Terminal
from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.training.build_parts import build_parts, player_of
from turnwise.training.main import PHASES
from turnwise.training.module import PolicyModule
from turnwise.training.prepare_process import prepare
from turnwise.training.progress import Phases
from turnwise.training.read_candidates import read_candidates
from turnwise.training.state_choice import Choice

CONF = Path(__file__).resolve().parents[1] / "conf"
ACTIONS = ("look", "go to countertop 1", "go to fridge 1", "take apple 1 from countertop 1")
MB = 2**20


class Stub(Idle):
    """A policy that needs no time and returns one of ``actions``, chosen by the seed."""

    def __init__(self, actions: Sequence[list[int]], life: int | None) -> None:
        super().__init__()
        self.actions, self.asked, self.life = actions, 0, life
        self.first = 0.0  # time of the first request

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        self.first = self.first or time.perf_counter()
        self.asked += len(nodes)
        if self.life is not None and self.asked > self.life:
            os.kill(
                os.getpid(), signal.SIGKILL
            )  # the process ends between two shards, after the same number of samples on every machine
        chosen = (self.actions[seed % len(self.actions)] for seed in seeds)
        return [Sample(list(ids), [0.0] * len(ids)) for ids in chosen]


def main(file: str, folder: str, k: str, life: str | None = None) -> None:
    overrides = ["method=pivotrl", f"states.k={k}", "states.keep=mixed", f"data.file={file}", "name=million"]
    places = [f"paths.out={folder}", f"paths.cache={folder}/cache"]
    cfg = compose_config([*overrides, *places], CONF)
    check_config(cfg)
    prepare(int(cfg.seed))
    with Phases(PHASES, console=Terminal(stderr=True)) as phases:
        settings, parts, policy = build_parts(cfg)
        module = PolicyModule(policy.model, parts.loss, settings.update)
        player = player_of(cfg, settings, parts, policy, phases.log)
        stub = Stub([policy.chat.action(text) for text in ACTIONS], int(life) if life else None)
        one_turn = replace(player, engine=stub, sampling=settings.rollout.sampling, max_turns=1)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the recorded peak
        before, began, cpu_began = status("VmRSS"), time.perf_counter(), time.process_time()
        candidates = read_candidates(settings, parts, policy.chat, phases)
        read = time.perf_counter()
        read_mb = (status("VmRSS") - before) / MB
        kept = Choice(settings, parts, candidates.states, one_turn, module, phases).first().states
        chosen, cpu = time.perf_counter(), time.process_time() - cpu_began
        Batches(kept, settings.seed, settings.rollout.states, settings.rollout.trajectories)(0)
        ordered = time.perf_counter()
    number = len(candidates.demonstrations or ())
    found = {
        "trajectories": number,
        "states": len(candidates.states),
        "kept": len(kept),
        "samples": stub.asked,
        "read_seconds": round(read - began, 2),
        "profile_seconds": round(chosen - read, 2),
        "order_seconds": round(ordered - chosen, 2),
        "first_sample_seconds": round((stub.first or chosen) - began, 2),
        "us_per_trajectory": round((chosen - began) / number * 1e6, 1),
        "cpu_us_per_trajectory": round(cpu / number * 1e6, 1),
        "before_mb": round(before / MB, 1),
        "read_mb": round(read_mb, 1),
        "peak_mb": round((status("VmHWM") - before) / MB, 1),
        "shards": len(list((settings.folder / "profile").glob("shard-*"))),
        "profile_mb": round((settings.folder / "profile.parquet").stat().st_size / MB, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
