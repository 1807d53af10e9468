"""AWPO (arXiv:2512.19126): a judge's reward for the reasoning is mixed into the advantage of groups whose outcomes vary enough,
and whose mean outcome is below the greatest so far (Eqs. 18-25). Where all outcomes of a group are equal, w is 0: the judge
alone teaches nothing. AWPO has the environment and reward of ToolRL (env=apibank_thinking), but the ratio of a whole reply,
and groups of equal rewards stay. At scale=tiny_awpo, whose runs are kept, it has ToolRL's ratio and mean and leaves them out.

The algorithm. A step names the files that do it, below src/turnwise, and the parts and keys that decide it; the class of
a part is named in conf/GROUP/OPTION.yaml.

1. every assistant turn of each dialogue is a state s with the demonstrated calls, also of the clumsy expert's (70 % of them)
    [training/candidates.py, methods/states.py] states=expert_turns, data.good=0.3
2. for each iteration: draw B states (the paper's G), up to 4 of one dialogue together
    [methods/states.py] rollout.states=96, rollout.trajectories=24
3. draw K replies at each state from pi_old
    [methods/allocate.py, rollouts/player.py] allocator=uniform, allocator.group_size=16, rollout.turns=1
4. R_out = S_format + S_exec in [0, 2]: 1 if the reply can be parsed, plus the share of the expected calls that it makes
    (Eqs. 11-16)
    [methods/awpo.py] reward=graded
5. R_reasoning in [0, 1] is the judge's score; the default judge is a set of rules, which look at the calls too
    [data/turns_in_context.py, judges/offline.py, rollouts/verdicts.py] judge=offline
6. R_mix = R_out + R_reasoning (Eq. 17)
    [methods/awpo.py] advantage=awpo
7. A_out and A_mix: (R - mean) / (std + eps) of R_out and of R_mix within the group, 0 if all R are equal (Eqs. 18-19)
    [methods/awpo.py, methods/credit.py] advantage.zero_variance=keep
8. rho = std_mix / (std_out + std_mix); the mixing weight w is rho if rho < epsilon_mix and mean R_out < R_max, the greatest
    mean of a group in the run so far, this iteration included; else, and if the judge failed on a reply, 0 (Eqs. 20-21)
    [methods/awpo.py, rollouts/collect.py] advantage.gate=ratio, advantage.saturation=true, advantage.epsilon_mix=0.75
9. difficulty weight d = alpha_prio if tau_low < mean R_out < tau_high, else alpha_base (Eq. 22)
    [methods/awpo.py] advantage.difficulty=true, advantage.tau_low=0.4, advantage.tau_high=1.6, advantage.alpha_prio=1.5,
    advantage.alpha_base=0.5
10. A = d [(1 - w) A_out + w A_mix] (Eq. 23)
    [methods/awpo.py] advantage=awpo
11. radius = clip_max - (clip_max - clip_min) times the mean of w over the iteration's groups (Eq. 24). It acts from
    update.steps=2: in the first step on fresh replies the ratio is 1
    [methods/awpo.py, rollouts/pack.py, methods/loss.py] advantage.dynamic_clip=true, advantage.mean_over=all,
    advantage.clip_min=0.18, advantage.clip_max=0.2
12. J: mean over replies of min(ratio A, clip(ratio, 1 - radius, 1 + radius) A) with the ratio pi / pi_old of a whole
    reply (Eq. 25)
    [methods/loss.py] loss=clipped, loss.ratio=action, loss.aggregation=turn_mean_token_mean, loss.kl_beta=0.0
13. AdamW steps on -J, each on another part of the groups, with the gradient clipped
    [training/policy_module.py] update.steps=1, update.clip_norm=1.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Interval
from scipy.optimize import linear_sum_assignment

from turnwise.data.match_calls import same_value
from turnwise.data.toolcalls import Format
from turnwise.methods.credit import (
    BatchAdvantage,
    Credited,
    ZeroVariance,
    finite_rewards,
    leaf_rewards,
    mean,
    normalised,
    spread,
    std,
)
from turnwise.methods.method import Method, key
from turnwise.methods.reward import demonstrated_calls, made_calls, single_actions
from turnwise.types import Credit, Rewards, RolloutTree, ToolCall


@dataclass(frozen=True, slots=True)
class AWPO(Method):
    name: ClassVar[str] = "awpo"

    batch: int = key("rollout.states", 96)  # G, groups of an iteration
    group_size: int = key("allocator.group_size", 16)  # K, replies of a group
    epsilon_mix: float = key("advantage.epsilon_mix", 0.75)  # Eq. 21; the paper gives no number
    tau_low: float = key("advantage.tau_low", 0.4)  # tau_low and tau_high: R_out in Eq. 22; the paper gives no number
    tau_high: float = key("advantage.tau_high", 1.6)
    alpha_base: float = key("advantage.alpha_base", 0.5)  # alpha_base and alpha_prio (Eq. 22), of the paper's Table 6
    alpha_prio: float = key("advantage.alpha_prio", 1.5)
    clip_min: float = key("advantage.clip_min", 0.18)  # Eq. 24; both of the paper's Table 6
    clip_max: float = key("advantage.clip_max", 0.2)


@dataclass(frozen=True, slots=True)
class ToolRL(Method):
    """ToolRL (arXiv:2504.13958) on single turns of dialogues, with the reward of AWPO (0 to 2) in place of its own, without KL.
    The reward reads tool calls, so the default environment of method=toolrl is API-Bank (env=apibank_thinking, with the
    shipped policy that thinks before it calls). The environment sets the format of calls (reward.format).

    The algorithm:

    1. cut each dialogue into assistant turns that the environment does not exclude: states s with the expert's calls
        [training/candidates.py, methods/states.py] states=expert_turns
    2. for each iteration: draw B states s, as in pivotrl
        [methods/states.py] rollout.states=96, rollout.trajectories=24
    3. draw K replies at each s from pi_old
        [methods/allocate.py, rollouts/player.py] allocator=uniform, allocator.group_size=16, rollout.turns=1
    4. R_out = S_format + S_exec in [0, 2] (AWPO Eqs. 11-16)
        [methods/awpo.py] reward=graded
    5. A = (R_out - mean) / (std + eps) within the group; groups of equal rewards are left out
        [methods/credit.py] advantage=group, advantage.zero_variance=drop
    6. J: mean over replies of the mean over tokens of min(w A, clip(w) A), where w is a token's ratio (1 in the only
        step on fresh replies)
        [methods/loss.py] loss=clipped, loss.ratio=token, loss.clip_low=0.2, loss.clip_high=0.2, loss.kl_beta=0.0,
        loss.aggregation=seq_mean_token_mean
    7. one AdamW step on -J, with the gradient clipped
        [training/policy_module.py] update.steps=1, update.clip_norm=1.0
    """

    name: ClassVar[str] = "toolrl"

    batch: int = key("rollout.states", 96)
    group_size: int = key("allocator.group_size", 16)
    clip_low: float = key("loss.clip_low", 0.2)
    clip_high: float = key("loss.clip_high", 0.2)


@dataclass(frozen=True, slots=True)
class Mixed(ToolRL):
    """AWPO's naive baseline. It extends toolrl, in the same environment: the judge's reward for the reasoning is added
    to the outcome. The loss stays ToolRL's, with the ratio of a token.

    The algorithm is that of toolrl, but for these steps:

    5. ask the judge for R_reasoning; A = (R_mix - mean) / (std + eps), R_mix = R_out + R_reasoning (AWPO Eqs. 17-19), or R_out
        alone in a group with a reply that the judge could not score
        [judges/offline.py, rollouts/verdicts.py, methods/awpo.py] judge=offline, advantage=awpo, advantage.gate=open,
        advantage.saturation=false, advantage.difficulty=false, advantage.dynamic_clip=false, advantage.zero_variance=keep
    """

    name: ClassVar[str] = "mixed"


@dataclass(frozen=True, slots=True)
class Graded:
    """Computes R_out = S_format + S_exec in [0, 2], the outcome reward of an action (AWPO, arXiv:2512.19126, Eqs.
    11-16).

    The reward ``format`` (S_format) is 1 if the action can be parsed and was not cut off, else 0. The reward ``exec``
    (S_exec) is the :func:`execution_score` of the calls in the action, compared with the demonstrated calls. An action
    that cannot be parsed executes nothing, so its ``exec`` is 0 even if no call was expected; one that was cut off keeps
    its ``exec``. The rewards ``outcome``
    and ``total`` are both R_out, the sum of ``format`` and ``exec``.
    """

    format: Format | None = "hermes"
    most: ClassVar[float] = 2.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        expected = demonstrated_calls(tree.state, self.format)
        form, execution = [], []
        for leaf in single_actions(tree, "graded"):
            turn = tree.turns[leaf]
            if leaf in tree.invalid:
                form.append(math.nan)
                execution.append(math.nan)
                continue
            made = made_calls(turn.text, self.format)
            execution.append(0.0 if made is None else execution_score(expected, made))
            form.append(float(made is not None and not turn.truncated))
        outcome = [f + e for f, e in zip(form, execution, strict=True)]
        return {"format": form, "exec": execution, "outcome": outcome, "total": outcome}


def execution_score(expected: Sequence[ToolCall], made: Sequence[ToolCall]) -> float:
    """Returns S_exec in [0, 1], the agreement of the made calls with the expected calls (AWPO, arXiv:2512.19126, Eqs.
    13-16).

    The score is exactly 1 if every expected call was made with exactly its arguments and no other tool was called. The score is
    the sum of

    - r_name: Jaccard similarity of the sets of tool names;
    - r_para: for each expected call, the Jaccard similarity of its parameter names with those of the matched call (two
      empty sets count as equal);
    - r_value: the number of expected parameters that have exactly the expected value;

    divided by 1 + number of expected calls + number of their parameters.

    A call can only match an expected call of the same tool, and each call is matched at most once. Among all these
    matchings, the score uses the matching with the greatest r_para + r_value; an unmatched expected call adds 0. (The
    paper assumes one call per tool.) If no call is expected, the score is 1 if no call was made, else 0. As in the
    paper, additional calls of an expected tool do not lower the score.
    """
    if not expected and not made:
        return 1.0
    names, named = {call.name for call in expected}, {call.name for call in made}
    agreement = np.array([[_call_score(true, call) for call in made] for true in expected]).reshape(
        len(expected), len(made)
    )
    matched = agreement[linear_sum_assignment(agreement, maximize=True)].sum()
    parameters = sum(len(call.arguments) for call in expected)
    return float(len(names & named) / len(names | named) + matched) / (1 + len(expected) + parameters)


def _call_score(true: ToolCall, call: ToolCall) -> float:
    """r_para + r_value (Eqs. 14-15); 0 if the tools differ."""
    if true.name != call.name:
        return 0.0
    keys, made = true.arguments.keys(), call.arguments.keys()
    jaccard = len(keys & made) / len(keys | made) if keys | made else 1.0
    return jaccard + sum(same_value(true.arguments[key], call.arguments[key]) for key in keys & made)


PEAK = "peak_outcome"  # the rule's memory stores R_max (the highest mean outcome of any group so far) under this key

_Leaves = dict[int, float]  # leaf -> reward or advantage


@dataclass(frozen=True, slots=True)
class _Group:
    """The statistics of one tree's valid leaves (Eqs. 18-20)."""

    mean: float  # mean outcome
    spread: float  # s_out, the std of the outcome
    ratio: float | None  # rho (Eq. 20); None if the judge gave no score for one of the leaves
    a_out: _Leaves
    a_mix: _Leaves | None  # None if the judge gave no score for one of the leaves
    agreement: float | None  # correlation of outcome and reasoning reward; None if one of them does not vary


@dataclass(frozen=True, slots=True)
class Awpo(BatchAdvantage):
    """Computes A = d [(1 - w) A_out + w A_mix] for each valid leaf of a tree, and the clip radius of the iteration (Eqs.
    18-24). A leaf is valid if its environment did not fail. The valid leaves of one tree form a group.

    The rule reads the rewards ``outcome`` (``total`` if there is no ``outcome``) and ``reasoning``. R_mix is their sum.
    A_out and A_mix are the outcome and R_mix, each minus its mean over the group and divided by its population std plus
    ``eps``. A std of at most ``tolerance`` gives advantage exactly 0.

    - rho = s_mix / (s_out + s_mix + eps) (Eq. 20), where s_out and s_mix are the stds of the outcome and of R_mix;
    - the mixing weight is w = 1[mean_out < R_max] 1[rho < epsilon_mix] rho (Eq. 21). R_max is the highest mean outcome
      of a group so far in the run, including this batch (kept in the rule's memory). A mean within ``tolerance`` of
      R_max counts as equal to R_max;
    - the difficulty factor is d = alpha_base + (alpha_prio - alpha_base) 1[tau_low < mean_out < tau_high] (Eq. 22);
    - clip radius = clip_min + (1 - mean w) (clip_max - clip_min) (Eq. 24), with the mean over all groups of the
      iteration (Algorithm 1; the text at Eq. 24 speaks of the minibatch). A tree does not count as a group if it has
      fewer than two valid leaves (a single one still counts in J), if a gate stopped it, or if it has no weight under
      ``zero_variance=refill``.

    A group uses A_out alone (w = 0) if there is no reward ``reasoning``, or if the judge failed on a leaf of the group
    (whose ``reasoning`` is then NaN). The metric ``unjudged_groups`` counts these groups.

    conf/advantage/awpo.yaml explains the options. With ``gate=open`` and without ``saturation``, ``difficulty`` and
    ``dynamic_clip``, the rule is the group advantage of the plain sum of both rewards in every group that the judge scored.
    """

    gate: Literal["ratio", "inverse", "open"] = "ratio"
    saturation: bool = True
    difficulty: bool = True
    dynamic_clip: bool = True
    mean_over: Literal["all", "trained"] = "all"
    epsilon_mix: Annotated[float, Interval(gt=0, le=1)] = 0.75
    tau_low: float = 0.4
    tau_high: float = 1.6
    alpha_base: Annotated[float, Gt(0)] = 0.5
    alpha_prio: float = 1.5
    clip_min: Annotated[float, Interval(ge=0, le=1)] = 0.18
    clip_max: Annotated[float, Interval(ge=0, le=1)] = 0.20
    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    zero_variance: ZeroVariance = "keep"

    def __post_init__(self) -> None:
        pairs = (("tau_low", "tau_high"), ("alpha_base", "alpha_prio"), ("clip_min", "clip_max"))
        for low, high in pairs:
            least, most = getattr(self, low), getattr(self, high)
            if least > most or (low == "tau_low" and least == most):
                raise ValueError(f"{low} must be below {high}, got {low}={least} and {high}={most}")

    def over(self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]) -> Credited:
        """The new memory has R_max, the highest mean outcome so far."""
        groups = [self._group(tree, rewarded) for tree, rewarded in zip(trees, rewards, strict=True)]
        peak = max([memory.get(PEAK, -math.inf), *(group.mean for group in groups if group)])
        weights = [self._weight(group, peak) if group else 0.0 for group in groups]
        credits = [
            self._credit(tree, group, weight) for tree, group, weight in zip(trees, groups, weights, strict=True)
        ]
        mixed_groups = [
            (group, weight, any(credit.weight))
            for group, weight, credit in zip(groups, weights, credits, strict=True)
            if group
            and (any(credit.weight) or self.zero_variance != "refill")  # trees to be replaced do not count as groups
        ]
        mixing = mean([w for _, w, trained in mixed_groups if trained or self.mean_over == "all"] or [0.0])
        radius = self.clip_min + (1 - mixing) * (self.clip_max - self.clip_min)
        if self.dynamic_clip:
            credits = [
                replace(credit, clip_low=[radius] * len(credit.weight), clip_high=[radius] * len(credit.weight))
                for credit in credits
            ]
        if not math.isfinite(peak):  # no group yet
            return Credited(credits, memory)
        metrics = {
            **self._means(mixed_groups, mixing),
            "outcome_peak": peak,
            "unjudged_groups": float(sum(group is not None and group.ratio is None for group in groups)),
            **({"clip_radius": radius} if self.dynamic_clip else {}),
        }
        return Credited(credits, {**memory, PEAK: peak}, metrics)

    def _group(self, tree: RolloutTree, rewards: Rewards) -> _Group | None:
        """None if a gate stopped the tree or it has fewer than two valid leaves."""
        outcome = finite_rewards(tree, rewards, "outcome" if "outcome" in rewards else "total")
        if len(outcome) < 2:
            return None
        mixed = _mixed(tree, rewards, outcome)
        centre, s_out, a_out = mean(outcome.values()), std(outcome.values()), self._normalised(outcome)
        if mixed is None:
            return _Group(centre, s_out, None, a_out, None, None)
        s_mix = std(mixed.values())
        ratio = s_mix / (s_out + s_mix + self.eps) if s_mix > 0 else 0.0
        reasoning = {leaf: mixed[leaf] - value for leaf, value in outcome.items()}
        return _Group(centre, s_out, ratio, a_out, self._normalised(mixed), self._correlation(outcome, reasoning))

    def _correlation(self, outcome: _Leaves, reasoning: _Leaves) -> float | None:
        """The correlation, at least 0 under Assumption 3.2 of the paper; None if one of the two does not vary."""
        s_out, s_judge = std(outcome.values()), std(reasoning.values())
        if min(s_out, s_judge) <= self.tolerance:
            return None
        a, b = mean(outcome.values()), mean(reasoning.values())
        return mean([(outcome[leaf] - a) * (reasoning[leaf] - b) for leaf in outcome]) / (s_out * s_judge)

    def _normalised(self, rewards: _Leaves) -> _Leaves:
        """Eq. 19; 0 if the std is at most ``tolerance``."""
        return normalised(rewards, self.eps, self.tolerance) or dict.fromkeys(rewards, 0.0)

    def _weight(self, group: _Group, peak: float) -> float:
        """The mixing weight w (Eq. 21)."""
        if group.ratio is None or (self.saturation and not group.mean < peak - self.tolerance):
            return 0.0
        if self.gate == "open":
            return 1.0
        passes = group.ratio < self.epsilon_mix
        return group.ratio if passes == (self.gate == "ratio") else 0.0

    def _difficulty(self, group: _Group) -> float:
        """The factor d (Eq. 22)."""
        if not self.difficulty:
            return 1.0
        return self.alpha_prio if self.tau_low < group.mean < self.tau_high else self.alpha_base

    def _credit(self, tree: RolloutTree, group: _Group | None, weight: float) -> Credit:
        """Eq. 23. The ``views`` hold A_out and A_mix, for diagnostics."""
        if group is None:
            return spread(tree, self._untaught(tree))
        a_out, a_mix = group.a_out, group.a_mix or group.a_out
        scale = self._difficulty(group)
        advantage = {leaf: scale * ((1 - weight) * a_out[leaf] + weight * a_mix[leaf]) for leaf in a_out}
        credit = spread(tree, advantage if any(advantage.values()) else self._untaught(tree))
        credit.views = {"outcome": spread(tree, a_out).advantage, "mixed": spread(tree, a_mix).advantage}
        return credit

    def _untaught(self, tree: RolloutTree) -> _Leaves:
        keeps = self.zero_variance == "keep" and not tree.stopped
        return {leaf: 0.0 for leaf in tree.valid_leaves() if keeps}

    def _means(self, groups: Sequence[tuple[_Group, float, bool]], mixing: float) -> dict[str, float]:
        if not groups:
            return {}
        trained = [group for group, _, trained in groups if trained]
        ratios = [group.ratio for group in trained if group.ratio is not None]
        # Groups with equal outcomes are left out: their rho is 1 if the judge's scores differ, else 0.
        varied = [group.ratio for group, _, _ in groups if group.ratio is not None and group.spread > self.tolerance]
        agreed = [group.agreement for group, _, _ in groups if group.agreement is not None]
        return {
            "gate_open": mean([float(weight > 0) for _, weight, _ in groups]),
            "mix_weight": mixing,
            **({"rho": mean(ratios)} if ratios else {}),
            **({"gate_shut": mean([float(ratio >= self.epsilon_mix) for ratio in varied])} if varied else {}),
            **({"judge_agreement": mean(agreed)} if agreed else {}),
            **(
                {"difficulty": mean([self._difficulty(group) for group in trained])}
                if self.difficulty and trained
                else {}
            ),
        }


def _mixed(tree: RolloutTree, rewards: Rewards, outcome: _Leaves) -> _Leaves | None:
    """R_mix of each valid leaf (Eq. 17); None if one has no reasoning reward."""
    if "reasoning" not in rewards or any(map(math.isnan, leaf_rewards(tree, rewards, "reasoning").values())):
        return None
    reasoning = finite_rewards(tree, rewards, "reasoning")
    return {leaf: value + reasoning[leaf] for leaf, value in outcome.items()}
