"""Records what a run does: a line of metrics for each iteration, some of its rollouts as JSON lines, and counters over the
whole run, which the checkpoint saves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from turnwise.rollouts.collect import Experience
from turnwise.rollouts.pack import Update
from turnwise.runs.json_lines import append_lines, cut_lines, each_line
from turnwise.training.group_metrics import (
    VERIFIER,
    branch_metrics,
    gate_counts,
    group_verdict_counts,
    reward_metrics,
    trajectories,
    verifier_metrics,
    verifier_result,
)
from turnwise.types import Message, RolloutTree

JUDGE = "judge/"  # prefix of the names of the judge's metrics and counters
# Counters of sampling over the whole run:
SAMPLED = ("turns", "tokens", "trajectories", "faults", "retries", "cancelled")
_DIGITS = 6  # decimals of recorded log-probs and advantages; further digits may differ between processes


@dataclass(frozen=True, slots=True)
class Gathered:
    """The rollouts of one iteration, and their cost. Reports are since the process began."""

    experience: Experience
    cost: Mapping[str, float]  # turns, tokens, faults and retries of the collection
    seconds: float
    judge: Mapping[str, float] = field(default_factory=dict)  # the judge's report; empty without a judge
    engine: Mapping[str, float] = field(default_factory=dict)  # the engine's report


class Recorder(Callback):
    """Writes one line of metrics for each iteration, and ``trees`` rollout trees of each iteration.

    The counters are saved in the checkpoint. A resumed run removes the lines of iterations after the checkpoint, so
    that these iterations are not recorded twice. Every process of a run has a recorder with the counts of the whole
    run, but only one recorder writes files (``writes``). ``most`` is the greatest reward that a rollout can earn, and
    ``began`` the Unix time at which this start of the run began.
    """

    def __init__(
        self,
        folder: Path,
        messages: Any,
        trees: int = 4,
        writes: bool = True,
        loggers: Sequence[Logger] = (),
        most: float | None = None,
        began: float | None = None,
    ) -> None:
        self.folder, self.messages, self.writes, self.loggers = folder, messages, writes, loggers
        self.trees, self.most, self.began = trees, most, began or time.time()
        self.counters: dict[str, float] = {
            **dict.fromkeys(SAMPLED, 0),
            "rollout_seconds": 0.0,
            "update_seconds": 0.0,
            "cpu_seconds": 0.0,
            "wall_seconds": 0.0,  # of earlier starts, up to their last checkpoint
        }
        self.last: dict[str, float] = {}  # metrics of the current iteration, from its end on with those of its updates
        self._judge: dict[str, float] = {}  # the judge's last report since this process began
        self._update_began = self._cpu_began = self._update_cpu_began = 0.0

    def _named(self, prefix: str) -> dict[str, float]:
        return {key.removeprefix(prefix): value for key, value in self.counters.items() if key.startswith(prefix)}

    def result(self, profiled: Mapping[str, float], phases: Mapping[str, float], lost: int) -> dict[str, Any]:
        """Returns entries of ``result.json``. ``profiled`` counts the verdicts in the profile, ``phases`` holds the seconds
        of each phase since the last start of the run, and ``lost`` is the number of episodes missing in the evaluations.
        """
        counters, judge = self.counters, self._named(JUDGE)
        seconds = {name.replace(" ", "_"): round(value, 2) for name, value in phases.items()}
        seconds.pop("train", None)  # replaced below by the times of rollouts and updates over all starts
        seconds |= {"rollouts": round(counters["rollout_seconds"], 2), "updates": round(counters["update_seconds"], 2)}
        return {
            "rollout_turns": int(counters["turns"]),
            "rollout_tokens": int(counters["tokens"]),
            "cpu_seconds": round(counters["cpu_seconds"], 2),
            "wall_seconds": round(counters["wall_seconds"] + time.time() - self.began, 1),
            "faults": {"lost": int(counters["faults"]), "retries": int(counters["retries"]), "evaluations": lost},
            "seconds": seconds,
            **({"judge": judge} if judge else {}),
            "verifier": verifier_result(self._named(VERIFIER), profiled),
        }

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return self.counters | {"wall_seconds": self.counters["wall_seconds"] + time.time() - self.began}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.counters |= state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.writes:
            return
        done = trainer.current_epoch
        cut_lines(self.folder / "metrics.jsonl", lambda row: row["iteration"] < done + (row["phase"] != "train"))
        for path in (self.folder / "rollouts").glob("*.jsonl"):
            cut_lines(path, lambda row: row["iteration"] < done)

    # -- records of an iteration ---------------------------------------------------------------------------------------

    def add(self, counts: Mapping[str, float]) -> None:
        for name, value in counts.items():
            self.counters[name] = self.counters.get(name, 0) + value

    def collected(
        self,
        iteration: int,
        gathered: Gathered,
        updates: Sequence[Update],
        learned: Mapping[str, float] = MappingProxyType({}),
        cpu_began: float | None = None,
        waited: float | None = None,
    ) -> None:
        """Records the rollouts of an iteration, of all processes, and the updates that were packed from them.

        Args:
            learned: metrics of sampling, of reprofiling and of other models that were trained on the rollouts.
            cpu_began: the process's CPU time (``time.process_time``) when the iteration began. None: now.
            waited: seconds in which the iteration waited for the rollouts. None: the duration of the collection.
        """
        experience, cost, judge, seconds = gathered.experience, gathered.cost, gathered.judge, gathered.seconds
        self.add(cost)
        if cost["turns"]:  # groups of a frozen buffer were counted when they were sampled
            self.add(gate_counts([*experience.trees, *(tree for tree, _ in experience.replaced)]))
        for name, value in judge.items():
            self.counters[JUDGE + name] = self.counters.get(JUDGE + name, 0) + value - self._judge.get(name, 0)
        self._judge = dict(judge)
        verdicts = group_verdict_counts(experience)
        self.add({VERIFIER + name: count for name, count in verdicts.items()})
        self.counters["trajectories"] += sum(map(trajectories, experience.trees)) if cost["turns"] else 0.0
        self.counters["rollout_seconds"] += seconds if waited is None else waited
        self.last = {
            **reward_metrics(experience, self.most),
            **branch_metrics(experience),
            **verifier_metrics(verdicts),
            **learned,
            **{f"train/{name}": value for name, value in experience.metrics.items()},
            **{name: value for name, value in self.counters.items() if name.startswith(JUDGE)},
            **{f"rollout/{name}": self.counters[name] for name in SAMPLED},
            "rollout/tokens_per_s": cost["tokens"] / seconds if seconds else 0.0,
            "train/samples": sum(update.counts.sequences for update in updates),
            "train/stored_tokens": sum(update.stored_tokens for update in updates),
            "train/path_tokens": sum(update.path_tokens for update in updates),
            "seconds/rollout": seconds,
        }
        if self.writes:
            total = len(experience.trees)
            count = min(self.trees, total)
            places = [i * total // count for i in range(count)]  # spread evenly
            rows = [tree_record(iteration, self.messages, experience, i) for i in places]
            append_lines(self.folder / "rollouts" / "train.jsonl", rows)
        self._cpu_began = time.process_time() if cpu_began is None else cpu_began
        self._update_began, self._update_cpu_began = time.monotonic(), time.process_time()

    def waited(self, seconds: float) -> None:
        self.counters["rollout_seconds"] += seconds
        self._update_began += seconds

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Excludes the time of the ``with`` block, for example of an evaluation, from the time of the iteration."""
        began, cpu_began = time.monotonic(), time.process_time()
        yield
        passed = time.process_time() - cpu_began
        self._update_began += time.monotonic() - began
        self._cpu_began += passed
        self._update_cpu_began += passed

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seconds = time.monotonic() - self._update_began
        now = time.process_time()
        cpu, of_update = now - self._cpu_began, now - self._update_cpu_began
        self.counters["update_seconds"] += seconds
        self.counters["cpu_seconds"] += cpu
        metrics = {f"train/{name}": value for name, value in pl_module.last_metrics.items()}  # type: ignore[union-attr, operator]
        metrics |= self.last | {"seconds/update": seconds, "cpu/iteration": cpu, "cpu/update": of_update}
        if (learned := metrics.get("seconds/predictor_learn")) is not None:
            of_predictor = metrics["seconds/predictor_score"] + learned
            metrics["predictor/share"] = of_predictor / (metrics["seconds/rollout"] + learned + seconds)
        self.write(trainer.current_epoch, "train", metrics)
        self.last = metrics

    def write(self, iteration: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Appends a line to ``metrics.jsonl`` and tells the loggers, unless an earlier start wrote this evaluation."""
        path = self.folder / "metrics.jsonl"
        if not self.writes:
            return
        if phase == "eval" and any((row["phase"], row["iteration"]) == (phase, iteration) for row in each_line(path)):
            return
        for log in self.loggers:
            log.log_metrics(dict(metrics), step=iteration)
        append_lines(path, [{"iteration": iteration, "phase": phase, "time": round(time.time(), 3), **metrics}])


def tree_record(iteration: int, messages: Any, experience: Experience, i: int) -> dict[str, Any]:
    tree: RolloutTree = experience.trees[i]
    history: Sequence[Message] = messages(tree.state)
    return {
        "iteration": iteration,
        "state": {
            "id": tree.state.id,
            "turn": tree.state.turn,
            "task": tree.state.task.id,
            "type": tree.state.task.subset or None,
            "messages": [{"role": m["role"], "content": m["content"]} for m in history],
        },
        "expert": tree.state.expert,
        "version": tree.version,
        "turns": [
            {
                "parent": turn.parent,
                "text": turn.text,
                "observation": turn.observation,
                "reward": turn.reward,
                "done": turn.done,
                "tokens": len(turn.action_ids),
                "version": turn.version,
                "logprob": round(sum(turn.logprobs), _DIGITS),
                "advantage": round(advantage, _DIGITS),
                "info": turn.info,
            }
            for turn, advantage in zip(tree.turns, experience.credits[i].advantage, strict=True)
        ],
        "stopped": tree.stopped,
        "looks": [{"step": look.step, "values": dict(look.values), "stop": look.stop} for look in tree.looks],
        "rewards": {name: [None if v != v else v for v in values] for name, values in experience.rewards[i].items()},
    }
