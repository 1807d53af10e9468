"""Records metrics and rollouts of a run as JSON lines, saves counters in the checkpoint, and warns about iterations
from which the policy learns nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from turnwise.errors import Stopped
from turnwise.methods.gate import Never
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.pack import Update
from turnwise.runs.archive import append_lines, cut_lines, each_line
from turnwise.training.metrics import (
    TOLERANCE,
    VERIFIER,
    branch_metrics,
    count_verdicts,
    gate_counts,
    gate_result,
    reward_metrics,
    trajectories,
    verifier_metrics,
    verifier_result,
)
from turnwise.types import Message, RolloutTree

WARNINGS = "warnings.jsonl"  # in the run's folder, for the page of a run without a result
JUDGE = "judge/"  # prefix of the names of the judge's metrics and counters
# Counters of sampling over the whole run:
SAMPLED = ("turns", "tokens", "trajectories", "faults", "retries", "cancelled")
IN_A_ROW = 3  # so many iterations in a row without a sample end the run; so many with another problem cause a warning
_LAST = f"in the last {IN_A_ROW} iterations"
# kind of problem -> (metric, whether a value of this metric shows the problem, text of the warning)
_PROBLEMS: Mapping[str, tuple[str, Callable[[float], bool], str]] = {
    "empty": (
        "train/samples",
        lambda samples: samples == 0,
        "no rollout can be trained on, so the weights do not change",
    ),
    "spread": (
        "train/reward_std",
        lambda std: std <= TOLERANCE,
        f"{_LAST} all rollouts of each group earned the same reward, so that all advantages were 0",
    ),
    "format": (
        "train/readable",
        lambda share: share == 0,
        f"{_LAST} no action could be read as tool calls in reward.format, or all were cut off "
        "(rollout.sampling.max_tokens)",
    ),
    "truncated": (
        "train/truncated",
        lambda share: share == 1,
        f"{_LAST} every action was cut off; raise rollout.sampling.max_tokens",
    ),
    "unpaid": (
        "train/turns_paid",
        lambda share: share == 0,
        f"{_LAST} no rollout had a reward for a turn before its last turn, so only the outcome was used; set "
        "advantage.turn_reward to a value that the environment reports for each turn, such as admissible, or choose an "
        "advantage without rewards of turns, such as gigpo or monte_carlo (docs/methods/credit.md)",
    ),
    "masked": (
        "train/correction_masked",
        lambda share: share > 0.5,
        f"{_LAST} loss=corrected left out more than half of the tokens; with rollout.staleness above 0, set "
        "loss.correction.mask_low and mask_high to null or further apart, otherwise check that engine and trainer have "
        "the same weights, dtype and temperature",
    ),
}
_CAUSED = ("empty", "spread")  # kinds whose warning also tells the likely cause
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
            "cpu_seconds": 0.0,
        }
        self._pending: dict[str, float] = {}
        self._judge: dict[str, float] = {}  # the judge's last report since this process began
        self._update_began = self._cpu_began = self._update_cpu_began = 0.0

    @property
    def last(self) -> Mapping[str, float]:
        return self._pending

    @property
    def judge(self) -> dict[str, float]:
        """The judge's report over all starts of the run. Empty without a judge."""
        return self._named(JUDGE)

    def _named(self, prefix: str) -> dict[str, float]:
        return {key.removeprefix(prefix): value for key, value in self.counters.items() if key.startswith(prefix)}

    def result(self, profiled: Mapping[str, float], phases: Mapping[str, float], lost: int) -> dict[str, Any]:
        """Returns entries of ``result.json``: turns, tokens, CPU seconds, faults, seconds, the judge's report if there is
        a judge, and the counts of the verifier's verdicts.

        Args:
            profiled: the counts of verdicts in the profile.
            phases: seconds of each phase since the last start of the run.
            lost: number of episodes that are missing in the evaluations before and after training.
        """
        counters = self.counters
        seconds = {name.replace(" ", "_"): round(value, 2) for name, value in phases.items()}
        seconds.pop("train", None)  # replaced below by the times of rollouts and updates over all starts
        seconds |= {"rollouts": round(counters["rollout_seconds"], 2), "updates": round(counters["update_seconds"], 2)}
        return {
            "rollout_turns": int(counters["turns"]),
            "rollout_tokens": int(counters["tokens"]),
            "cpu_seconds": round(counters["cpu_seconds"], 2),
            "faults": {"lost": int(counters["faults"]), "retries": int(counters["retries"]), "evaluations": lost},
            "seconds": seconds,
            **({"judge": self.judge} if self.judge else {}),
            "verifier": verifier_result(self._named(VERIFIER), profiled),
        }

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
        for path in (*(self.folder / "rollouts").glob("*.jsonl"), self.folder / WARNINGS):
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
        metrics |= self._pending | {"seconds/update": seconds, "cpu/iteration": cpu, "cpu/update": of_update}
        metrics |= predictor_share(metrics)
        self.write(trainer.current_epoch, "train", metrics)

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


class Health(Callback):
    """Warns about iterations from which the policy learns nothing, once about each kind of problem, with the likely cause.
    After several iterations in a row without a training sample, the run ends.

    Counts and warnings are saved in the checkpoint, so that a resumed run continues to count and repeats no warning.

    Args:
        recorder: provides the metrics of an iteration. The trainer must call the recorder before this callback.
        allow_empty: whether the run continues however many consecutive iterations have no training sample
            (``update.allow_empty``).
    """

    def __init__(self, recorder: Recorder, log: Callable[[str], None], allow_empty: bool = False) -> None:
        self.recorder, self.log_line, self.allow_empty = recorder, log, allow_empty  # Lightning sets the name `log`
        self.in_a_row = dict.fromkeys(_PROBLEMS, 0)
        self.warnings: dict[str, str] = {}  # kind of problem -> the warning about it

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": dict(self.in_a_row), "warnings": dict(self.warnings)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.in_a_row |= state_dict["in_a_row"]
        self.warnings = dict(state_dict["warnings"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.check(trainer.current_epoch, self.recorder.last)
        unpaid = "train/reward_mean" not in self.recorder.last and self.recorder.last.get("rollout/faults")
        if unpaid and self.in_a_row["empty"] == trainer.max_epochs and not self.allow_empty:
            raise Stopped("the environment failed in every rollout; the first messages above say how")

    def check(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Counts the problems that the metrics of an iteration show, and warns about new kinds of problems.

        Raises:
            Stopped: ``IN_A_ROW`` consecutive iterations had no training sample, and ``allow_empty`` is not set.
        """
        cause = likely_cause(metrics)
        for kind, (metric, shows, text) in _PROBLEMS.items():
            seen = metric in metrics and shows(metrics[metric])
            self.in_a_row[kind] = self.in_a_row[kind] + 1 if seen else 0
            if kind in self.warnings or self.in_a_row[kind] < (1 if kind == "empty" else IN_A_ROW):
                continue
            text = f"iteration {iteration}: {text}{f'; {cause}' if kind in _CAUSED else ''}"
            self.warnings[kind] = text
            self.log_line(f"warning: {text}")
            if self.recorder.writes:
                row = {"iteration": iteration, "kind": kind, "text": text}
                append_lines(self.recorder.folder / WARNINGS, [row])
        if self.in_a_row["empty"] >= IN_A_ROW and not self.allow_empty:
            raise Stopped(
                f"{self.in_a_row['empty']} iterations in a row had no rollout to train on. The run stops, because the policy "
                f"learns nothing; {cause}. The same command with update.allow_empty=true continues to the end and "
                "writes the report. To change other settings, give the run another name=..., or set fresh=true"
            )

    def closing(self, gate: Any) -> dict[str, Any]:
        """Returns the entries ``gate`` and ``warnings`` of the run's result. Empty entries are left out."""
        stopped = {} if gate is None or isinstance(gate, Never) else {"gate": gate_result(self.recorder.counters)}
        return stopped | ({"warnings": list(self.warnings.values())} if self.warnings else {})


def likely_cause(metrics: Mapping[str, float]) -> str:
    """Returns the likely reason why the groups of an iteration give no learning signal, and a remedy."""
    groups, mean = metrics.get("train/groups", 0.0), metrics.get("train/reward_mean")
    played = groups + metrics.get("train/groups_refilled", 0.0)
    causes = (
        (
            played and metrics.get("train/groups_solved") == played,
            "every rollout earned the full reward: choose harder tasks (another env= or data.file=), or stop and keep this "
            "policy",
        ),
        (
            not groups,
            "every group that was played was replaced or left out; choose states that the policy solves sometimes "
            "(states=pivots)",
        ),
        (
            metrics.get("train/groups_cut") == groups,
            "the gate stopped all groups; let it stop fewer (with gate=divergence, lower gate.threshold), or set gate=never",
        ),
        (metrics.get("train/truncated") == 1, "every action was cut off; raise rollout.sampling.max_tokens"),
        (
            metrics.get("train/readable") == 0,
            "no action could be read as tool calls in reward.format; correct reward.format, or start from a policy that "
            "writes this format (policy.start: the adapter of a run of method=sft)",
        ),
        (mean is None, "no rollout has a reward: the environment failed, or the method computes no rewards"),
        (
            mean is not None and mean <= 0,
            "no rollout earned a reward: start from a policy that method=sft trained (policy.start) until some of its tasks "
            "succeed (more iterations=, policy.lora.r=0), or choose states=pivots or easier tasks",
        ),
    )
    alike = (
        "in every group all rollouts earned the same reward: raise rollout.sampling.temperature or allocator.group_size, "
        "or choose states=pivots"
    )
    return next((text for holds, text in causes if holds), alike)
