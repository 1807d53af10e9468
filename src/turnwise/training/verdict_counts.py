"""Counts the verifiers' verdicts on single actions, for each domain.

A domain is an environment, or ``dialogues`` for all dialogues without an environment. An action is accepted if its
verdict ``functional`` is 1. The miss rate is the fraction of accepted actions that an exact comparison would reject,
Pr[strict = 0 | functional = 1] (PivotRL, arXiv:2603.21383, section 2.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

from turnwise.algo.states.state_rule import Profile
from turnwise.rollouts.collect import Experience
from turnwise.types import Rewards, RolloutTree, State

VERIFIER = "verifier/"  # prefix of the names of metrics and counters
_COUNTED = ("judged", "accepted", "exact", "missed", "truncated")


def domain_of(state: State) -> str:
    return state.task.env or "dialogues"


def count_verdicts(experience: Experience) -> Counter[str]:
    """Counts the verdicts in the trees of an iteration.

    The keys are ``<domain>/judged``, ``<domain>/accepted``, ``<domain>/exact``, ``<domain>/missed`` (accepted but not
    exact) and ``<domain>/truncated``. An action is not counted if it lacks the verdict ``functional`` or ``strict``, or
    if its environment failed. A truncated action is counted as judged and is never accepted.
    """
    counts: Counter[str] = Counter()
    for tree, rewards in zip(experience.trees, experience.rewards, strict=True):
        _count(counts, domain_of(tree.state), _verdicts(tree, rewards))
    return counts


def count_profile(profiles: Mapping[str, Profile], states: Iterable[State]) -> Counter[str]:
    """Counts the verdicts in a profile, under the keys of :func:`count_verdicts`. ``truncated`` is always 0, because a
    profile does not store which actions were truncated.
    """
    counts: Counter[str] = Counter()
    for state in states:
        if state.id in profiles:
            found = profiles[state.id]
            _count(counts, domain_of(state), zip(found.functional, found.strict, repeat(False)))
    return counts


def verifier_metrics(counts: Mapping[str, float]) -> dict[str, float]:
    """Returns the fractions of judged actions that are accepted, exact and truncated, and the miss rates of all domains
    together and of each domain. Undefined fractions are left out.
    """
    domains = sorted({key.partition("/")[0] for key in counts})
    total = {name: sum(counts.get(f"{domain}/{name}", 0) for domain in domains) for name in _COUNTED}
    if not total["judged"]:
        return {}
    metrics = {name: total[name] / total["judged"] for name in ("accepted", "exact", "truncated")}
    if total["accepted"]:
        metrics["miss_rate"] = total["missed"] / total["accepted"]
    for domain in domains:
        if accepted := counts.get(f"{domain}/accepted", 0):
            metrics[f"miss_rate/{domain}"] = counts.get(f"{domain}/missed", 0) / accepted
    return {VERIFIER + name: value for name, value in metrics.items()}


def verifier_result(sampled: Mapping[str, float], profiled: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Returns for each domain the counts and the miss rate of the verdicts on the run's rollouts (``sampled``) and,
    under ``profile``, of the verdicts on the actions of a profile (``profiled``).
    """
    domains = sorted({key.partition("/")[0] for key in (*sampled, *profiled)})
    result: dict[str, dict[str, Any]] = {}
    for domain in domains:
        sides = [{name: int(side.get(f"{domain}/{name}", 0)) for name in _COUNTED} for side in (sampled, profiled)]
        shares = [_shares(side) for side in sides]
        result[domain] = shares[0] | ({"profile": shares[1]} if shares[1] else {})
    return result


def _shares(counts: Mapping[str, int]) -> dict[str, Any]:
    if not counts["judged"]:
        return {}
    rate = {"miss_rate": round(counts["missed"] / counts["accepted"], 4)} if counts["accepted"] else {}
    return {"judged": counts["judged"], "accepted": counts["accepted"], "exact": counts["exact"], **rate}


def _count(counts: Counter[str], domain: str, verdicts: Iterable[tuple[float, float, bool]]) -> None:
    for functional, strict, truncated in verdicts:
        if functional != functional or strict != strict:
            continue
        counts[f"{domain}/judged"] += 1
        counts[f"{domain}/accepted"] += functional >= 1
        counts[f"{domain}/exact"] += strict >= 1
        counts[f"{domain}/missed"] += functional >= 1 and strict < 1
        counts[f"{domain}/truncated"] += truncated


def _verdicts(tree: RolloutTree, rewards: Rewards) -> list[tuple[float, float, bool]]:
    """Returns (functional, strict, truncated) of each judged action of a tree. The verdicts are read from the rewards,
    or from the turns if the rewards contain no verdicts.
    """
    if "functional" in rewards and "strict" in rewards:
        cut = [tree.turns[leaf].truncated for leaf in tree.leaves()]
        return list(zip(rewards["functional"], rewards["strict"], cut, strict=True))
    turns = [turn for place, turn in enumerate(tree.turns) if place not in tree.invalid]
    judged = [turn for turn in turns if "functional" in turn.info and "strict" in turn.info]
    return [(turn.info["functional"], turn.info["strict"], turn.truncated) for turn in judged]
