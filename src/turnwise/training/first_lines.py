"""Writes the first lines of a run's log: what the run does, and the amount of work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.envs.environment import environments_of
from turnwise.models.shipped import BASES, unknown_to
from turnwise.runs.config_hash import config_hash

# in this package, by benchmarks/by_name.py: {"machine": ..., "minutes": {configuration hash at seed 0: minutes}}
FILE = "durations.json"


def opening_lines(cfg: DictConfig, environment: Any) -> list[str]:
    """Returns the first log lines of a run: its method, environment, policy, iterations and evaluations, and warnings
    if the method does not read ``data.file`` or if a shipped model predicts the success of another policy.
    """
    iterations, settings = int(cfg.trainer.max_epochs), cfg.eval
    file = OmegaConf.select(cfg, "data.file")
    at_starts = str(cfg.states["_target_"]).endswith("TaskStarts")
    reads = bool(file) and not at_starts
    domain = Path(file).name if reads else environment.name  # the dialogues of a file may belong to no environment
    source = f" Demonstrations: {file}." if reads else ""
    lines = [
        f"{cfg.method} on {domain}, policy {cfg.policy.model}, seed {cfg.seed}: "
        f"{_counted(iterations, 'iteration', 'iterations')} of {_iteration(cfg, environment)}.{source}"
    ]
    if file and at_starts:
        lines.append(
            f"warning: data.file={file} is not read, because method={cfg.method} starts at tasks of the environment. The "
            "methods that read a file are sft, local, pivotrl, toolrl, awpo and mixed."
        )
    if cfg.predictor is not None and cfg.predictor.model in BASES and cfg.policy.model not in BASES:
        lines.append(
            f"warning: the predictor is the shipped model {cfg.predictor.model}, which knows only environments at "
            f"level=tiny; set predictor=qwen3_0_6b or predictor.model=... for policy {cfg.policy.model}."
        )
    if took := duration_line(cfg):
        lines.append(took)
    answers = int(settings.attempts) + 1  # the number of sampled answers, and one greedy answer
    note = ""
    if reads and cfg.data.held_out == 0:
        played = f"env={environment.name}" if settings.environment else "an environment to which dialogues belong"
        each = f"tasks of {played}, {_counted(answers, 'episode', 'episodes')} each"
        note = f" No dialogue of {domain} is held out (data.held_out=0)."
    elif reads:
        each = f"tasks or dialogues, {_counted(answers, 'episode or reply', 'episodes or replies')} each"
    else:
        each = f"tasks, {_counted(answers, 'episode', 'episodes')} each"
    between = f", every {settings.every} iterations" if 0 < int(settings.every) < iterations else ""
    lines.append(
        f"Evaluation before{between} and after training: {settings.tasks} held-out {each}.{note} The time left is shown "
        "as soon as an estimate is possible."
    )
    return lines


def duration_line(cfg: DictConfig) -> str | None:
    """Returns a line that tells how long a run with this configuration takes, for any seed, or None if the duration was
    not measured.
    """
    measured = json.loads((files("turnwise.training") / FILE).read_text(encoding="utf-8"))
    minutes = measured["minutes"].get(hash_at_seed_0(cfg))
    if minutes is None:
        return None
    return f"The whole run takes about {max(round(minutes), 1)} min on {measured['machine']}."


def hash_at_seed_0(cfg: DictConfig) -> str:
    """Returns the hash of the configuration with ``seed=0``. The duration of a run does not depend on its seed."""
    return config_hash(OmegaConf.merge(cfg, {"seed": 0}))  # type: ignore[arg-type]


def untrained_lines(model: str, environment: Any) -> list[str]:
    """Returns a log line for each of the run's environments on which the shipped policy ``model`` was never trained."""
    parts = environments_of(environment).values()
    return [line for part in parts if (line := unknown_to(model, part.name, getattr(part, "level", None)))]


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def _iteration(cfg: DictConfig, environment: Any) -> str:
    states, turns = int(cfg.rollout.states), cfg.rollout.turns
    if cfg.allocator is None:
        return f"{states} demonstrations"
    length = (
        "one turn"
        if turns == 1
        else f"up to {turns or max(w.horizon for w in environments_of(environment).values())} turns"
    )
    rollouts = _rollouts(cfg.allocator, states)
    if rollouts is None:
        return f"{states} states, rollouts of {length}"
    return f"{states} states and {rollouts:,.0f} rollouts of {length}"


def _rollouts(allocator: Mapping[str, Any], states: int) -> float | None:
    """Returns the number of rollouts of one iteration, or None if the allocator decides the number during the run. A
    continuation, which starts after a turn, counts 1/2.
    """
    if "group_size" in allocator and "budget" not in allocator:
        return float(allocator["group_size"]) * (allocator.get("prompts") or states)
    if "budget" in allocator:
        roots = allocator["budget"] or 2 * states
        return float(roots * (1 + allocator.get("expansion", 0) / 2))
    return None
