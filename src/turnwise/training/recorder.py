"""Records metrics and rollouts of a run as JSON lines, and saves counters in the checkpoint."""

from __future__ import annotations

import logging
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
from turnwise.training.branch_metrics import branch_metrics, trajectories
from turnwise.training.gate_savings import gate_counts
from turnwise.training.iteration_metrics import reward_metrics
from turnwise.training.verdict_counts import VERIFIER, count_verdicts, verifier_metrics, verifier_result
from turnwise.types import Message, RolloutTree

logger = logging.getLogger(__name__)

JUDGE = "judge/"  # prefix of the names of the judge's metrics and counters
# Counters of sampling over the whole run:
SAMPLED = ("turns", "tokens", "trajectories", "faults", "retries", "cancelled", "cancelled_tokens")
_DIGITS = 6  # decimals of recorded log-probs and advantages; further digits may differ between processes


@dataclass(frozen=True, slots=True)
class Gathered:
    """The rollouts of one iteration (``experience``), and the cost of the rollouts.

    Attributes:
        cost: turns, tokens, faults and retries of the collection.
        seconds: duration of the collection in seconds.
        judge: the judge's report since the process began. Empty without a judge.
        engine: the engine's report since the process began.
    """

    experience: Experience
    cost: Mapping[str, float]
    seconds: float
    judge: Mapping[str, float] = field(default_factory=dict)
    engine: Mapping[str, float] = field(default_factory=dict)


class Recorder(Callback):
    """Writes one line of metrics for each iteration, and ``trees`` rollout trees of each iteration.

    The counters are saved in the checkpoint. A resumed run removes the lines of iterations after the checkpoint, so
    that these iterations are not recorded twice. Every process of a run has a recorder with the counts of the whole
    run, but only one recorder writes files (``writes``). ``most`` is the greatest reward that a rollout can earn.
    """

    def __init__(
        self,
        folder: Path,
        messages: Any,
        trees: int = 4,
        writes: bool = True,
        loggers: Sequence[Logger] = (),
        most: float | None = None,
    ) -> None:
        self.folder, self.messages, self.writes, self.loggers = folder, messages, writes, loggers
        self.trees, self.most = trees, most
        self.counters: dict[str, float] = {
            **dict.fromkeys(SAMPLED, 0),
            "trajectories": 0.0,
            "rollout_seconds": 0.0,
            "update_seconds": 0.0,
            "rows": 0,  # number of rows of the phase "train" in metrics.jsonl, one for each iteration
            "trees": 0,  # number of recorded trees
            "cpu_seconds": 0.0,
        }
        self._pending: dict[str, float] = {}
        self._judge: dict[str, float] = {}  # the judge's last report since this process began
        self._update_began = self._cpu_began = self._update_cpu_began = 0.0

    @property
    def last(self) -> Mapping[str, float]:
        """The metrics of the last iteration's rollouts."""
        return self._pending

    @property
    def verdicts(self) -> dict[str, float]:
        """The counts of verdicts by domain (:func:`count_verdicts`), over all starts of the run."""
        return {key.removeprefix(VERIFIER): value for key, value in self.counters.items() if key.startswith(VERIFIER)}

    @property
    def judge(self) -> dict[str, float]:
        """The judge's report over all starts of the run. Empty without a judge."""
        return {key.removeprefix(JUDGE): value for key, value in self.counters.items() if key.startswith(JUDGE)}

    def result(self, profiled: Mapping[str, float]) -> dict[str, Any]:
        """Returns entries of ``result.json``: the judge's report if there is a judge, and the counts of the verifier's
        verdicts for rollouts and for profiles. ``profiled`` holds the counts for profiles.
        """
        verdicts = {"verifier": verifier_result(self.verdicts, profiled)}
        return {"judge": self.judge, **verdicts} if self.judge else verdicts

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return dict(self.counters)

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
        """Adds counts to the counters, such as the cost of samples drawn before the first iteration. A checkpoint that
        is loaded later replaces the counters with counters that include this cost.
        """
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
        """Records the rollouts of an iteration.

        Args:
            gathered: the rollouts of all processes, and the cost of the rollouts.
            updates: the packed updates with these rollouts.
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
        verdicts = count_verdicts(experience)
        self.add({VERIFIER + name: count for name, count in verdicts.items()})
        self.counters["trajectories"] += sum(map(trajectories, experience.trees)) if cost["turns"] else 0.0
        self.counters["rollout_seconds"] += seconds if waited is None else waited
        self._pending = {
            **reward_metrics(experience, self.most),
            **branch_metrics(experience),
            **verifier_metrics(verdicts),
            **learned,
            **{f"train/{name}": value for name, value in experience.metrics.items()},
            **{JUDGE + name: value for name, value in self.judge.items()},
            **{f"rollout/{name}": self.counters[name] for name in SAMPLED},
            "rollout/tokens_per_s": cost["tokens"] / seconds if seconds else 0.0,
            "train/samples": sum(update.counts.sequences for update in updates),
            "train/stored_tokens": sum(update.stored_tokens for update in updates),
            "train/path_tokens": sum(update.path_tokens for update in updates),
            "seconds/rollout": seconds,
        }
        if self.writes:
            places = _spread(len(experience.trees), self.trees)
            rows = [tree_record(iteration, self.messages, experience, i) for i in places]
            append_lines(self.folder / "rollouts" / "train.jsonl", rows)
            self.counters["trees"] += len(rows)
        self._cpu_began = time.process_time() if cpu_began is None else cpu_began
        self._update_began, self._update_cpu_began = time.monotonic(), time.process_time()

    def waited(self, seconds: float) -> None:
        """Counts ``seconds`` as time for rollouts instead of time for the update."""
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
        metrics |= self._pending | {"seconds/update": seconds, "cpu/iteration": cpu, "cpu/update": of_update}
        metrics |= predictor_share(metrics)
        self.write(trainer.current_epoch, "train", metrics)
        self.counters["rows"] += 1

    def check(self) -> None:
        """Warns if rows of ``metrics.jsonl`` or ``rollouts/train.jsonl`` were lost. The run continues, because its
        result is computed without these files.
        """
        if not self.writes:
            return
        rows = sum(row["phase"] == "train" for row in each_line(self.folder / "metrics.jsonl"))
        trees = sum(1 for _ in each_line(self.folder / "rollouts" / "train.jsonl"))
        for name, found, written in (("metrics.jsonl", rows, "rows"), ("rollouts/train.jsonl", trees, "trees")):
            if found != self.counters[written]:
                logger.warning(
                    "%s: the file was damaged: %d of %d records of training are left; the run's result does not need them",
                    self.folder / name,
                    found,
                    self.counters[written],
                )

    def write(self, iteration: int, phase: str, metrics: Mapping[str, float]) -> None:
        """Appends one line to ``metrics.jsonl`` and passes the metrics to the loggers, unless the phase is ``eval`` and
        the file already has a line of this phase and iteration.
        """
        path = self.folder / "metrics.jsonl"
        if not self.writes:
            return
        if phase == "eval" and any((row["phase"], row["iteration"]) == (phase, iteration) for row in each_line(path)):
            return
        for log in self.loggers:
            log.log_metrics(dict(metrics), step=iteration)
        row = {"iteration": iteration, "phase": phase, "time": round(time.time(), 3), **metrics}
        append_lines(path, [row])


def predictor_share(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metric ``predictor/share``: the predictor's fraction of an iteration's time. Empty without predictor."""
    if "seconds/predictor_learn" not in metrics:
        return {}
    asked, taught = metrics["seconds/predictor_score"], metrics["seconds/predictor_learn"]
    return {"predictor/share": (asked + taught) / (metrics["seconds/rollout"] + taught + metrics["seconds/update"])}


def tree_record(iteration: int, messages: Any, experience: Experience, i: int) -> dict[str, Any]:
    """Returns tree number ``i`` as a JSON object, for the pages that show rollouts."""
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


def _spread(total: int, count: int) -> list[int]:
    """Returns min(``count``, ``total``) indices, spread evenly over 0 to ``total`` - 1."""
    count = min(count, total)
    return [i * total // count for i in range(count)]
