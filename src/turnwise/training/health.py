"""Warns about iterations from which the policy learns nothing, once about each kind of problem, with the likely cause.
After several iterations in a row without a training sample, the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer

from turnwise.algo.gates.rules import Never
from turnwise.errors import Stopped
from turnwise.runs.json_lines import append_lines, cut_lines
from turnwise.training.gate_savings import gate_result
from turnwise.training.recorder import Recorder

FILE = "warnings.jsonl"  # in the run's folder; each line is {"iteration", "kind", "text"}
IN_A_ROW = 3  # so many iterations in a row without a sample end the run; so many with another problem cause a warning

_KINDS = ("empty", "spread", "format", "truncated", "unpaid", "masked")


class Health(Callback):
    """Checks the metrics of each iteration before the checkpoint is written.

    Counts and warnings are saved in the checkpoint, so that a resumed run continues to count and repeats no warning.

    Args:
        recorder: provides the metrics of an iteration. The trainer must call the recorder before this callback.
        folder: the run's folder, in which the warnings are stored.
        allow_empty: whether the run continues however many consecutive iterations have no training sample
            (``update.allow_empty``).
        writes: whether this process writes the run's files.
    """

    def __init__(
        self,
        recorder: Recorder,
        folder: Path,
        log: Callable[[str], None],
        allow_empty: bool = False,
        writes: bool = True,
    ) -> None:
        self.recorder, self.path, self.log_line = recorder, folder / FILE, log  # Lightning sets the name `log`
        self.allow_empty, self.writes = allow_empty, writes
        self.in_a_row = dict.fromkeys(_KINDS, 0)
        self.warnings: list[str] = []
        self.told: list[str] = []  # kinds of problems about which the run has warned

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": dict(self.in_a_row), "warnings": list(self.warnings), "told": list(self.told)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.in_a_row |= state_dict["in_a_row"]
        self.warnings, self.told = list(state_dict["warnings"]), list(state_dict["told"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.writes:  # a resumed run repeats the iterations after its checkpoint, and the warnings about them
            cut_lines(self.path, lambda row: row["iteration"] < trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.check(trainer.current_epoch, self.recorder.last)

    def check(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Counts the problems that the metrics of an iteration show, and warns about new kinds of problems.

        Raises:
            Stopped: ``IN_A_ROW`` consecutive iterations had no training sample, and ``allow_empty`` is not set.
        """
        now = {
            "empty": metrics["train/samples"] == 0,
            "spread": metrics.get("train/reward_std", 1.0) <= 1e-6,  # this metric is missing without a reward
            "format": metrics.get("train/readable", 1.0) == 0,
            "truncated": metrics.get("train/truncated", 0.0) == 1,
            "unpaid": metrics.get("train/turns_paid", 1.0) == 0,  # present if the advantage uses rewards of turns
            "masked": metrics.get("train/correction_masked", 0.0) > 0.5,  # present with loss=corrected
        }
        for kind, seen in now.items():
            self.in_a_row[kind] = self.in_a_row[kind] + 1 if seen else 0
        cause = likely_cause(metrics)
        texts = {
            "empty": f"iteration {iteration}: no rollout can be trained on, so the weights do not change; {cause}",
            "spread": f"iteration {iteration}: in every group of the last {IN_A_ROW} iterations, all rollouts earned "
            f"the same reward, so that all advantages were 0; {cause}",
            "format": f"iteration {iteration}: in the last {IN_A_ROW} iterations no action could be read as a reply with tool "
            "calls; probably the policy does not write calls in reward.format, or its replies are cut off "
            "(rollout.sampling.max_tokens)",
            "truncated": f"iteration {iteration}: in the last {IN_A_ROW} iterations every action was cut off; raise "
            "rollout.sampling.max_tokens",
            "unpaid": f"iteration {iteration}: in the last {IN_A_ROW} iterations no rollout had a reward for a turn "
            "before its last turn. This advantage gives credit to turns by their own rewards, so only the outcome was "
            "used. Set advantage.turn_reward to a value that the environment reports for each turn, such as "
            "admissible (a value that is equal for all turns does not help), or choose an advantage that needs "
            "no rewards of turns, such as gigpo or monte_carlo (docs/methods/credit.md)",
            "masked": f"iteration {iteration}: in the last {IN_A_ROW} iterations loss=corrected left out the samples of more "
            "than half of the tokens (train/correction_masked), because the policy's probabilities differ too much from "
            "those with which the samples were drawn; with rollout.staleness above 0, set loss.correction.mask_low and "
            "mask_high to null or further apart, otherwise check that engine and trainer have the same weights, "
            "dtype and temperature",
        }
        for kind, text in texts.items():
            if kind not in self.told and self.in_a_row[kind] >= (1 if kind == "empty" else IN_A_ROW):
                self._warn(iteration, kind, text)
        if self.in_a_row["empty"] >= IN_A_ROW and not self.allow_empty:
            raise Stopped(
                f"{self.in_a_row['empty']} iterations in a row had no rollout to train on. The run stops, because the policy "
                f"learns nothing; {cause}. The same command with update.allow_empty=true continues to the end and "
                "writes the report. To change other settings, give the run another name=..., or set fresh=true"
            )

    def closing(self, gate: Any) -> dict[str, Any]:
        """Returns the entries ``gate`` and ``warnings`` of the run's result. Empty entries are left out."""
        stopped = {} if gate is None or isinstance(gate, Never) else {"gate": gate_result(self.recorder.counters)}
        return stopped | ({"warnings": list(self.warnings)} if self.warnings else {})

    def _warn(self, iteration: int, kind: str, text: str) -> None:
        self.told.append(kind)
        self.warnings.append(text)
        self.log_line(f"warning: {text}")
        if self.writes:
            append_lines(self.path, [{"iteration": iteration, "kind": kind, "text": text}])


def likely_cause(metrics: Mapping[str, float]) -> str:
    """Returns the likely reason why the groups of an iteration give no learning signal, and a remedy."""
    groups, mean = metrics.get("train/groups", 0.0), metrics.get("train/reward_mean")
    played = groups + metrics.get("train/groups_refilled", 0.0)
    if played and metrics.get("train/groups_solved") == played:
        return (
            "every rollout earned the full reward: the policy solves the tasks of this run and has nothing left to "
            "learn from them; choose harder tasks (another env= or data.file=), or stop and keep this policy"
        )
    if not groups:
        return (
            "every group that was played was replaced or left out; choose states that the policy solves sometimes "
            "(states=pivots)"
        )
    if metrics.get("train/groups_cut") == groups:
        return (
            f"the gate stopped all {groups:.0f} groups; let it stop fewer groups (with gate=divergence, lower "
            "gate.threshold), or set gate=never"
        )
    if metrics.get("train/truncated") == 1:
        return "every action was cut off; raise rollout.sampling.max_tokens"
    if metrics.get("train/readable") == 0:
        return (
            "no action could be read as tool calls in reward.format; correct reward.format, or start from a policy "
            "that writes this format (train it by method=sft, then set policy.start to the adapter folder of that run)"
        )
    if mean is None:
        return "no rollout has a reward: the environment failed in all rollouts, or the method computes no rewards"
    if mean <= 0:
        return (
            "no rollout earned a reward: the tasks are too hard for this policy, or the policy does not know the "
            "environment; start from a policy that method=sft trained (policy.start), or choose states=pivots or easier tasks"
        )
    return (
        f"in every group all rollouts earned the same reward (the mean is {mean:.3g}): each task is too easy or too "
        "hard, or the rollouts are too similar; raise rollout.sampling.temperature or allocator.group_size, or choose "
        "states=pivots"
    )
