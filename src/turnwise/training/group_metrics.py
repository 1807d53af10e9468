"""Metrics of the groups of rollouts (trees) of an iteration: rewards, branches, gates, and verdicts on single actions.

A *domain* is an environment, or ``dialogues`` for all dialogues without an environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from turnwise.evaluation.suites import repeat_rate
from turnwise.methods.states import STD_TOLERANCE, Profile
from turnwise.rollouts.collect import Experience, Played
from turnwise.types import RolloutTree, State

GATE, VERIFIER = "gate/", "verifier/"  # prefixes of the names of counters
_GATE_COUNTS = ("groups", "cut", "looked", "unstopped", "open", "passed", "turns", "tokens")
_VERDICT_COUNTS = ("judged", "accepted", "exact", "missed", "truncated")


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
    placed = [place for tree in trees for place in continuation_places(tree)]
    metrics["train/continuations"] = len(placed)
    if not placed:
        return metrics
    metrics["branch/depth"] = sum(depth for depth, _ in placed) / len(placed)
    metrics["branch/position"] = sum(position for _, position in placed) / len(placed)
    counts = [branch_contrast(tree, rewards["total"]) for tree, rewards in zip(trees, experience.rewards, strict=True)]
    leaves = sum(below for below, _ in counts)
    if leaves:
        metrics["train/effective_prefixes"] = sum(mixed for _, mixed in counts) / leaves
    return metrics


def continuation_places(tree: RolloutTree) -> list[tuple[int, float]]:
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


def branch_contrast(tree: RolloutTree, total: Sequence[float]) -> tuple[int, int]:
    """Returns the number of leaves below all branch points, and the number of leaves below those branch points whose
    leaves have different rewards (TRACE Eq. 20).

    A branch point is a turn after which several rollouts continue. A leaf counts once for each branch point above it.
    Rollouts whose environment failed are left out, as in :func:`continuation_places`.
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


def group_verdict_counts(experience: Experience) -> Counter[str]:
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


def profile_verdict_counts(profiles: Mapping[str, Profile], states: Iterable[State]) -> Counter[str]:
    """Counts the verdicts in a profile, under the keys of :func:`group_verdict_counts`. ``truncated`` is always 0, because a
    profile does not store which actions were truncated.
    """
    counts: Counter[str] = Counter()
    for state in states:
        if (profile := profiles.get(state.id)) is not None:
            _count(counts, domain_of(state), zip(profile.functional, profile.strict, repeat(False), strict=False))
    return counts


def _count(counts: Counter[str], domain: str, verdicts: Iterable[tuple[float, float, bool]]) -> None:
    for functional, strict, truncated in verdicts:
        if functional == functional and strict == strict:
            marks = (1, functional >= 1, strict >= 1, functional >= 1 and strict < 1, truncated)
            counts.update({f"{domain}/{name}": int(one) for name, one in zip(_VERDICT_COUNTS, marks, strict=True)})


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
