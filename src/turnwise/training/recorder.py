"""Counts and records what a run does: metrics of the groups of rollouts (trees) of an iteration (rewards, cost, branches,
gates, verdicts), its rollouts as JSON lines, and counters over the whole run, which the checkpoint saves.

A *domain* is an environment, or ``dialogues`` for all dialogues without an environment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from turnwise.evaluation.suites import repeat_rate
from turnwise.methods.states import STD_TOLERANCE, Profile
from turnwise.rollouts.collect import Experience, Played
from turnwise.rollouts.pack import Update
from turnwise.runs.json_lines import append_lines, cut_lines, each_line
from turnwise.types import Message, RolloutTree, State

JUDGE = "judge/"  # prefix of the names of the judge's metrics and counters
# Counters of sampling over the whole run:
SAMPLED = ("turns", "tokens", "trajectories", "faults", "retries", "cancelled")
_DIGITS = 6  # decimals of recorded log-probs and advantages; further digits may differ between processes
GATE, VERIFIER = "gate/", "verifier/"  # prefixes of the names of counters
_GATE_COUNTS = ("groups", "cut", "looked", "unstopped", "open", "passed", "turns", "tokens")
_VERDICT_COUNTS = ("judged", "accepted", "exact", "missed", "truncated")


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
        verdicts = count_verdicts(experience)
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


def domain_of(state: State) -> str:
    return state.task.env or "dialogues"


# -- rewards -----------------------------------------------------------------------------------------------------------


def paid_groups(groups: Iterable[Played]) -> list[tuple[str, list[float]]]:
    """Returns the domain and the total rewards of each group. Rollouts whose environment failed are left out, and so are
    groups without a reward and groups that a gate stopped, because their episodes are incomplete.
    """
    rewarded = [
        (domain_of(tree.state), [reward for reward in rewards.get("total", ()) if reward == reward])
        for tree, rewards in groups
        if not tree.stopped
    ]
    return [(domain, total) for domain, total in rewarded if total]


def reward_metrics(experience: Experience, most: float | None = None) -> dict[str, float]:
    """Returns metrics of the groups of one iteration. A group is effective if the rewards of its rollouts differ.
    ``most`` is the greatest reward that a rollout can earn, or None if this reward is unknown.
    """
    paid = paid_groups(zip(experience.trees, experience.rewards, strict=True))
    metrics: dict[str, float] = {
        "train/groups": len(experience.trees),
        "train/groups_refilled": len(experience.replaced),
        "train/groups_cut": sum(tree.stopped for tree in experience.trees),
    }
    if most is not None:
        played = [*paid, *paid_groups(experience.replaced)]
        metrics["train/groups_solved"] = sum(min(total) >= most - STD_TOLERANCE for _, total in played)
    if paid:
        totals = [total for _, total in paid]
        means = [sum(total) / len(total) for total in totals]
        stds = [
            (sum((r - mean) ** 2 for r in total) / len(total)) ** 0.5 for total, mean in zip(totals, means, strict=True)
        ]
        metrics["train/reward_mean"] = sum(means) / len(means)
        metrics["train/reward_std"] = sum(stds) / len(stds)
        mixed = [len(total) for total, std in zip(totals, stds, strict=True) if std > STD_TOLERANCE]
        metrics["train/groups_mixed"], metrics["train/effective_groups"] = len(mixed), len(mixed) / len(stds)
        metrics["train/effective_leaves"] = sum(mixed) / sum(map(len, totals))
        domains = sorted({domain for domain, _ in paid})
        for domain in domains if len(domains) > 1 else ():
            of_domain = [mean for (one, _), mean in zip(paid, means, strict=True) if one == domain]
            metrics[f"train/reward_mean/{domain}"] = sum(of_domain) / len(of_domain)
    readable = [value for rewards in experience.rewards for value in rewards.get("format", ()) if value == value]
    if readable:
        metrics["train/readable"] = sum(readable) / len(readable)
    turns = [turn for tree in experience.trees for turn in tree.turns]
    if turns:
        metrics["train/response_tokens"] = sum(len(turn.action_ids) for turn in turns) / len(turns)
        metrics["train/truncated"] = sum(turn.truncated for turn in turns) / len(turns)
    paths = [[tree.turns[i].text for i in tree.path(leaf)] for tree in experience.trees for leaf in tree.valid_leaves()]
    if paths:
        metrics["train/repeat_rate"] = sum(map(repeat_rate, paths)) / len(paths)
        metrics["train/turns_per_rollout"] = sum(map(len, paths)) / len(paths)
    return metrics


# -- branches ----------------------------------------------------------------------------------------------------------


def children_of(tree: RolloutTree) -> dict[int, list[int]]:
    """Returns turn -> the turns that follow it, without turns below which the environment failed in all rollouts."""
    valid = {turn for leaf in tree.valid_leaves() for turn in tree.path(leaf)}
    return {turn: [child for child in born if child in valid] for turn, born in tree.children().items()}


def trajectories(tree: RolloutTree) -> float:
    """Returns the cost of a tree in TRACE's unit (arXiv:2606.11119, Appendix E.5): a rollout from the root costs 1, and
    a continuation (a rollout that starts after a turn) costs 1/2. Rollouts whose environment failed are not counted.
    """
    children = children_of(tree)
    continuations = sum(len(born) - 1 for turn, born in children.items() if turn >= 0 and born)
    return len(children[-1]) + continuations / 2


def branch_metrics(experience: Experience) -> dict[str, float]:
    """Returns metrics of the rollout trees of one iteration. The metrics ``branch/...`` are left out if no tree has a
    continuation.
    """
    trees = experience.trees
    metrics: dict[str, float] = {"train/states_skipped": experience.skipped}
    if trees:
        metrics["train/states_active"] = len(trees) / (len(trees) + experience.skipped)
        metrics["train/roots_per_group"] = sum(len(children_of(tree)[-1]) for tree in trees) / len(trees)
    placed = [place for tree in trees for place in branches(tree)]
    metrics["train/continuations"] = len(placed)
    if not placed:
        return metrics
    metrics["branch/depth"] = sum(depth for depth, _ in placed) / len(placed)
    metrics["branch/position"] = sum(position for _, position in placed) / len(placed)
    counts = [contrast(tree, rewards["total"]) for tree, rewards in zip(trees, experience.rewards, strict=True)]
    leaves = sum(below for below, _ in counts)
    if leaves:
        metrics["train/effective_prefixes"] = sum(mixed for _, mixed in counts) / leaves
    return metrics


def branches(tree: RolloutTree) -> list[tuple[int, float]]:
    """Returns (depth, relative position) of each continuation, which is a rollout that starts after a turn.

    The depth is the number of turns before the continuation. The relative position is the depth divided by the number
    of turns of the rollout from which the continuation branches. Continuations whose environment failed are left out.
    """
    children = children_of(tree)
    placed = []
    for turn, born in children.items():
        if turn >= 0 and len(born) > 1:
            depth = length = len(tree.path(turn))
            at = turn
            while children[at]:  # the first child belongs to the original rollout
                at, length = children[at][0], length + 1
            placed += [(depth, depth / length)] * (len(born) - 1)
    return placed


def contrast(tree: RolloutTree, total: Sequence[float]) -> tuple[int, int]:
    """Returns the number of leaves below all branch points, and the number of leaves below those branch points whose
    leaves have different rewards (TRACE Eq. 20).

    A branch point is a turn after which several rollouts continue. A leaf counts once for each branch point above it.
    Rollouts whose environment failed are left out, as in :func:`branches`.
    """
    children = children_of(tree)
    below: dict[int, list[float]] = {turn: [] for turn, born in children.items() if turn >= 0 and len(born) > 1}
    for leaf, reward in zip(tree.leaves(), total, strict=True):
        for turn in () if leaf in tree.invalid else tree.path(leaf)[:-1]:
            if turn in below:
                below[turn].append(reward)
    mixed = [group for group in below.values() if group and max(group) - min(group) > STD_TOLERANCE]
    return sum(map(len, below.values())), sum(map(len, mixed))


# -- gates -------------------------------------------------------------------------------------------------------------


def gate_counts(trees: Iterable[RolloutTree], to_the_end: bool = False) -> dict[str, float]:
    """Counts the groups that were sampled, and the gate's decisions. Counts of several collections can be added.

    - ``groups``: all groups.
    - ``looked``: groups about which the gate made a decision.
    - ``cut``: groups that the gate decided to stop.
    - ``unstopped``: all groups if ``to_the_end`` is set, else 0.
    - ``open``: rollouts that were running when the gate decided to stop their group.
    - ``passed``: rollouts that continued after the gate's last decision about their group.
    - ``turns``, ``tokens``: turns and tokens that the ``passed`` rollouts took after the gate's last decision.

    Args:
        trees: all groups, including groups that a refill replaced later.
        to_the_end: whether groups that the gate decided to stop were sampled to their end, as in a frozen buffer. Then
            ``passed``, ``turns`` and ``tokens`` count only these groups and measure the savings directly.
    """
    counts = dict.fromkeys(_GATE_COUNTS, 0.0)
    for tree in trees:
        counts["groups"] += 1
        counts["unstopped"] += to_the_end
        counts["cut"] += tree.stopped
        counts["looked"] += bool(tree.looks)
        if not tree.looks or (to_the_end and not tree.stopped):
            continue
        if tree.stopped and not to_the_end:
            # A last turn without observation tokens ended its episode, or reached the greatest number of turns or length.
            counts["open"] += sum(bool(tree.turns[leaf].observation_ids) for leaf in tree.valid_leaves())
            continue
        step = tree.looks[-1].step
        depth = [len(tree.path(turn)) for turn in range(len(tree.turns))]
        after = [turn for turn, at in zip(tree.turns, depth, strict=True) if at > step]
        counts["passed"] += depth.count(step + 1)
        counts["open"] += depth.count(step + 1) * to_the_end
        counts["turns"] += len(after)
        counts["tokens"] += sum(len(turn.action_ids) for turn in after)
    return {GATE + name: value for name, value in counts.items()}


def gate_result(counters: Mapping[str, float]) -> dict[str, float]:
    """Returns the entry ``gate`` of the run's result, from the run's counters.

    ``saved_turns`` and ``saved_tokens`` estimate how many turns and tokens the stopped rollouts would have taken: as
    many on average as the rollouts that continued after the gate's last decision. Both values are left out if rollouts
    were stopped but no rollout continued. ``unstopped`` is left out if it is 0.
    """
    at = {name: counters.get(GATE + name, 0.0) for name in _GATE_COUNTS}
    result = {name: at[name] for name in ("groups", "looked", "cut")} | {"stopped_rollouts": at["open"]}
    if at["passed"] or not at["open"]:
        for name in ("turns", "tokens"):
            result[f"saved_{name}"] = round(at["open"] * (at[name] / at["passed"] if at["passed"] else 0.0))
    return result | ({"unstopped": at["unstopped"]} if at["unstopped"] else {})


# -- verdicts on single actions ----------------------------------------------------------------------------------------
# An action is accepted if its verdict ``functional`` is 1. The miss rate is the fraction of accepted actions that an exact
# comparison would reject, Pr[strict = 0 | functional = 1] (PivotRL, arXiv:2603.21383, section 2, motivating observations).


def count_verdicts(experience: Experience) -> Counter[str]:
    """Counts the verdicts in the trees of an iteration, under the keys ``<domain>/judged``, ``<domain>/accepted``,
    ``<domain>/exact``, ``<domain>/missed`` (accepted but not exact) and ``<domain>/truncated``. An action is not counted
    if it lacks a verdict, or if its environment failed. A truncated action is never accepted.
    """
    counts: Counter[str] = Counter()
    verdicts: Iterable[tuple[float, float, bool]]
    for tree, rewards in zip(experience.trees, experience.rewards, strict=True):
        if "functional" in rewards and "strict" in rewards:
            cut = [tree.turns[leaf].truncated for leaf in tree.leaves()]
            verdicts = zip(rewards["functional"], rewards["strict"], cut, strict=True)
        else:
            turns = [turn for place, turn in enumerate(tree.turns) if place not in tree.invalid]
            judged = [turn for turn in turns if {"functional", "strict"} <= turn.info.keys()]
            verdicts = ((turn.info["functional"], turn.info["strict"], turn.truncated) for turn in judged)
        _count(counts, domain_of(tree.state), verdicts)
    return counts


def count_profile(profiles: Mapping[str, Profile], states: Iterable[State]) -> Counter[str]:
    """Counts the verdicts in a profile, under the keys of :func:`count_verdicts`. ``truncated`` is always 0, because a
    profile does not store which actions were truncated.
    """
    counts: Counter[str] = Counter()
    for state in states:
        if (found := profiles.get(state.id)) is not None:
            _count(counts, domain_of(state), zip(found.functional, found.strict, repeat(False), strict=False))
    return counts


def _count(counts: Counter[str], domain: str, verdicts: Iterable[tuple[float, float, bool]]) -> None:
    for functional, strict, truncated in verdicts:
        if functional == functional and strict == strict:
            found = (1, functional >= 1, strict >= 1, functional >= 1 and strict < 1, truncated)
            counts.update({f"{domain}/{name}": int(one) for name, one in zip(_VERDICT_COUNTS, found, strict=True)})


def verifier_metrics(counts: Mapping[str, float]) -> dict[str, float]:
    """Returns the fractions of judged actions that are accepted, exact and truncated, and the miss rates of all domains
    together and of each domain. Undefined fractions are left out.
    """
    domains = sorted({key.partition("/")[0] for key in counts})
    total = {name: sum(counts[f"{domain}/{name}"] for domain in domains) for name in _VERDICT_COUNTS}
    if not total["judged"]:
        return {}
    metrics = {name: total[name] / total["judged"] for name in ("accepted", "exact", "truncated")}
    if total["accepted"]:
        metrics["miss_rate"] = total["missed"] / total["accepted"]
    for domain in domains:
        if accepted := counts[f"{domain}/accepted"]:
            metrics[f"miss_rate/{domain}"] = counts[f"{domain}/missed"] / accepted
    return {VERIFIER + name: value for name, value in metrics.items()}


def verifier_result(sampled: Mapping[str, float], profiled: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Returns for each domain the counts and the miss rate of the verdicts on the run's rollouts (``sampled``) and,
    under ``profile``, of the verdicts on the actions of a profile (``profiled``).
    """

    def shares(counts: Mapping[str, float], domain: str) -> dict[str, Any]:
        count = {name: int(counts.get(f"{domain}/{name}", 0)) for name in _VERDICT_COUNTS}
        if not count["judged"]:
            return {}
        rate = {"miss_rate": round(count["missed"] / count["accepted"], 4)} if count["accepted"] else {}
        return {name: count[name] for name in ("judged", "accepted", "exact")} | rate

    result: dict[str, dict[str, Any]] = {}
    for domain in sorted({key.partition("/")[0] for key in (*sampled, *profiled)}):
        profile = shares(profiled, domain)
        result[domain] = shares(sampled, domain) | ({"profile": profile} if profile else {})
    return result
