"""TRACE (arXiv:2606.11119) spends rollouts where success and failure are both likely, branches where the outcome may
still change, and compares siblings. The default environment of method=trace has multi-hop questions (env=search, with
the shipped policy that knows tools), one of the paper's three domains, whose episodes are short. An iteration has 64
rollouts and 128 continuations. A continuation costs half a trajectory (App. E.5), so an iteration costs 64 + 128 / 2 = 128
trajectories, if every prompt has a turn to branch at.

The algorithm. A step names the files that do it, below src/turnwise, and the parts and keys that decide it; the class of
a part is named in conf/GROUP/OPTION.yaml.

1. for each iteration: draw a pool of candidate prompts
    [methods/states.py] states=task_starts, rollout.states=32
2. V(h): predicted success of the history h, of a prompt or of a prefix, the history after a turn that did not end its rollout
    (Eq. 17); 1/2 before training
    [rollouts/predictor.py] predictor=tiny, predictor.layers=1
3. divide M rollouts (null: twice the pool) among the prompts, m = 0 or m > 1 for each, so that the sum of 1 - V^m - (1 - V)^m,
    the chance that both outcomes occur, is greatest (Eqs. 12-13)
    [methods/trace.py, methods/allocate.py] allocator=trace, allocator.root=predicted, allocator.budget=null
4. play these M rollouts with pi_old to their end
    [rollouts/player.py] rollout.turns=null
5. when a prompt's rollouts have ended: q = r V + (1 - r)(1 - V) of each prefix, the chance that a continuation ends like the
    rollout that it leaves, whose reward is r (Eq. 15); the paper's r for questions is F1, reward.of=return
    [methods/trace.py, methods/reward.py, rollouts/predictor.py] reward=outcome, reward.of=won
6. divide m N continuations among the prefixes of each prompt, k for each, so that the sum of 1 - q^k is greatest (Eqs. 14-16)
    [methods/trace.py, rollouts/player.py] allocator.prefix=predicted, allocator.expansion=2
7. R of a leaf is r, and of a node the mean of its children; A_c = (R_c - mean) / (std + eps) over siblings, for all turns up to
    the next branch point; equal siblings have weight 0 (Eqs. 45-46)
    [methods/trace.py, methods/credit.py] advantage=treerpo, advantage.zero_variance=drop
8. fit V by squared error to the mean reward of the leaves below each prompt, and below a few prefixes that branched (Eqs. 18-19)
    [rollouts/predictor.py] predictor.epochs=2, predictor.prefix_share=0.06
9. w_t = pi / pi_old of each token; min(w_t A, clip(w_t) A). In the only step on fresh rollouts of the tree engine w_t is 1
    [methods/loss.py] loss=clipped, loss.ratio=token, loss.clip_low=0.2, loss.clip_high=0.28, loss.kl_beta=0.0
10. J: mean over prompts of the mean over branches of the mean over tokens, of branches with weight only (Eqs. 43, 47)
    [methods/loss.py] loss.aggregation=tree_mean_seq_mean_token_mean
11. one AdamW step on -J, with the gradient clipped
    [training/policy_module.py] update.steps=1, update.clip_norm=1.0
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Interval

from turnwise.methods.allocate import Array, Counts, anchors, even, greedy, probabilities
from turnwise.methods.credit import ZeroVariance, branch_credit, finite_rewards, normalised
from turnwise.methods.method import Method, key
from turnwise.types import Credit, Judge, Rewards, RolloutTree, State, Value


@dataclass(frozen=True, slots=True)
class TRACE(Method):
    name: ClassVar[str] = "trace"

    pool: int = key("rollout.states", 32)  # candidate prompts of an update; the paper: 256 or 512
    # M, rollouts from the roots; None: twice the pool, the paper's ratio
    budget: int | None = key("allocator.budget", None)
    expansion: int = key("allocator.expansion", 2)  # N, continuations per rollout on average, of App. E.5
    prefix_share: float = key("predictor.prefix_share", 0.06)  # share of prefixes among V's examples (App. E.6)
    clip_low: float = key("loss.clip_low", 0.2)
    clip_high: float = key("loss.clip_high", 0.28)  # both of App. E.3


def trace_root_allocation(values: Sequence[float] | Array, budget: int) -> Counts:
    """Returns the number m of rollouts of each prompt, shape (B,), so that the sum of f(m) over prompts is largest.
    f(m) is the predicted probability that m rollouts of a prompt contain both a success and a failure (Eq. 12).

    Each m is in {0, 2, 3, ...}, and all m sum to ``budget``. f(m) = 1 - v^m - (1 - v)^m for m > 0 with
    the predicted success v, and f(0) = f(1) = 0. The first two rollouts together gain f(2), so each of them gains v (1 - v).
    The third gains the same, and the m-th f(m) - f(m - 1), which falls with m. So f equals its concave hull except at m =
    1, which is not allowed. The greedy choice on the hull is optimal unless it leaves one prompt with a single rollout.
    In that case one rollout must be moved, the least loss on the hull: either the single rollout goes to the prompt
    that gains most from one more, or the prompt with the single rollout gets a second one from the prompt that loses
    least.

    ``values`` are the predicted successes v, ``budget`` is M.
    """
    v_B = probabilities(values, "values")
    if budget < 0 or budget == 1 or (budget > 0 and not len(v_B)):
        raise ValueError(
            f"budget {budget} cannot be spent on {len(v_B)} prompts, because a prompt gets either no rollout or at least "
            "two; give at least one prompt and a budget of 0 or of at least 2"
        )
    if budget == 0:
        return np.zeros(len(v_B), np.int64)
    high_B = np.maximum(v_B, 1 - v_B)
    low_B = np.minimum(v_B, 1 - v_B)
    pair_B = high_B * low_B
    if (
        not pair_B.any()
    ):  # no outcome is uncertain, so every allocation is equally good: use as many prompts as possible
        counts_B = np.zeros(len(v_B), np.int64)
        active = min(len(v_B), budget // 2)
        counts_B[:active] = even(active, budget)
        return counts_B

    def gain(items: Counts, start: int, stop: int) -> Array:
        high, low, pair = (x[items, None] for x in (high_B, low_B, pair_B))
        if stop <= 3:
            return np.broadcast_to(pair, (len(items), stop - start))
        before = np.arange(start, stop)[None]  # the number of rollouts before the added one
        fall = low * high**before + high * low**before
        return np.where(before < 3, pair, np.minimum(fall, pair))

    counts_B = greedy(gain, len(v_B), budget, width=3)
    left = budget - int(counts_B.sum())
    if left:  # the gains of all uncertain prompts have underflowed to 0
        taken = np.flatnonzero(counts_B)
        counts_B[taken] += even(len(taken), left)
    lone = np.flatnonzero(counts_B == 1)  # at most one, because greedy fills one prompt before the next
    if len(lone):
        _complete(counts_B, int(lone[0]), pair_B, high_B, low_B)
    return counts_B


def _complete(counts_B: Counts, lone: int, pair_B: Array, high_B: Array, low_B: Array) -> None:
    """Moves one rollout, so that prompt ``lone`` has none or two instead of one, with the greater sum of gains."""
    others = np.flatnonzero(counts_B >= 2)
    m, high, low, pair = (x[others] for x in (counts_B, high_B, low_B, pair_B))
    following = np.where(m < 3, pair, low * high**m + high * low**m)
    last = np.where(m < 3, np.inf, np.where(m == 3, pair, low * high ** (m - 1) + high * low ** (m - 1)))
    best, worst = int(np.argmax(following)), int(np.argmin(last))
    if pair_B[lone] - last[worst] > following[best] - pair_B[lone]:
        counts_B[others[worst]] -= 1
        counts_B[lone] = 2
    else:
        counts_B[others[best]] += 1
        counts_B[lone] = 0


def trace_prefix_allocation(same: Sequence[float] | Array, budget: int) -> Counts:
    """Returns the number k of continuations of each prefix, shape (A,), so that the sum over prefixes of 1 - q^k is
    largest (Eqs. 15-16). 1 - q^k is the probability that at least one of k continuations ends with another outcome than
    the original rollout.

    The numbers sum to ``budget``. The gain of one more continuation is q^(k - 1) (1 - q), which falls with k, so the
    greedy choice is optimal. Once every gain is 0 (every prefix has q = 1, or has q = 0 and one continuation), the rest
    of the budget is spread evenly. ``same`` are the q (:func:`trace_same_outcome`), ``budget`` is m N.
    """
    q_A = probabilities(same, "same")
    if budget < 0 or (budget > 0 and not len(q_A)):
        raise ValueError(
            f"budget {budget} cannot be spent on {len(q_A)} prefixes; a budget must be at least 0, and a budget above "
            "0 needs at least one prefix"
        )

    def gain(items: Counts, start: int, stop: int) -> Array:
        q = q_A[items, None]
        return (1 - q) * q ** np.arange(start, stop)[None]

    counts_A = greedy(gain, len(q_A), budget)
    left = budget - int(counts_A.sum())
    return counts_A + even(len(q_A), left) if left else counts_A


def trace_same_outcome(values: Sequence[float] | Array, rewards: Sequence[float] | Array) -> Array:
    """Returns q = r V + (1 - r) (1 - V) of each prefix (Eq. 15): the probability that a continuation has the same
    outcome as the original rollout. Rewards r between 0 and 1 are not rounded. Raises a ValueError if a number is
    outside [0, 1].
    """
    v_A, r_A = probabilities(values, "values"), probabilities(rewards, "rewards")
    return r_A * v_A + (1 - r_A) * (1 - v_A)


@dataclass(frozen=True, slots=True)
class Trace:
    """Distributes ``budget`` rollouts over the states by their predicted success (Eq. 13), then continues rollouts at
    chosen turns (Eq. 16).

    Continuations are started once, after the rollouts from the root have ended, and separately for each prompt. If no
    rollout of a prompt has a turn to branch at, the prompt gets its m N as further rollouts from its root instead. A
    rollout whose environment failed gets no continuations. ``root=uniform`` spreads the budget evenly over as many
    states as can get ``group_size`` rollouts each (over at least one state). The combinations of ``root`` and
    ``prefix`` are the rows of the paper's Table 1.
    """

    value: Value  # the predicted success of histories
    reward: Judge  # of finished rollouts, within [0, 1]
    budget: Annotated[int, Interval(ge=2, le=10**7)] | None = None  # M; None: twice the number of states
    expansion: Annotated[int, Interval(ge=0, le=2**16)] = 2  # N
    root: Literal["predicted", "uniform"] = "predicted"
    prefix: Literal["predicted", "random"] = "predicted"
    group_size: Annotated[int, Interval(ge=2, le=2**16)] = 4
    seed: int = 0

    def __call__(self, states: Sequence[State]) -> list[int]:
        if not states:
            return []
        budget = 2 * len(states) if self.budget is None else self.budget
        if self.root == "uniform":
            active = min(len(states), max(1, budget // self.group_size))
            return [*even(active, budget).tolist(), *[0] * (len(states) - active)]
        values = [value[0] for value in self.value([RolloutTree(state) for state in states])]
        return trace_root_allocation(values, budget).tolist()

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        if self.expansion == 0:
            return [{} for _ in trees]
        blind = self.prefix == "random"
        values = [[0.0] * (1 + len(tree.turns)) for tree in trees] if blind else self.value(trees)
        return [self._expand(tree, value) for tree, value in zip(trees, values, strict=True)]

    def _expand(self, tree: RolloutTree, value: Sequence[float]) -> Mapping[int, int]:
        rollouts = anchors(tree)
        budget = len(rollouts) * self.expansion
        if not any(rollouts):
            return {-1: budget} if budget else {}
        rng = random.Random(f"{self.seed}/{tree.state.id}/{tree.version}")
        if self.prefix == "random":
            turns = [turn for path in rollouts for turn in path]
            return Counter(rng.choice(turns) for _ in range(budget))
        totals = [r for leaf, r in zip(tree.leaves(), self.reward(tree)["total"]) if leaf not in tree.invalid]
        places = [(turn, total) for path, total in zip(rollouts, totals, strict=True) for turn in path]
        rng.shuffle(places)  # so that ties between equally good turns do not always favour the first rollout
        same = trace_same_outcome([value[turn + 1] for turn, _ in places], [total for _, total in places])
        return {turn: int(k) for (turn, _), k in zip(places, trace_prefix_allocation(same, budget), strict=True) if k}


@dataclass(frozen=True, slots=True)
class TreeRPO:
    """Computes A_c = (R_c - mean) / (std + eps) for each child c of a node. R_c is the child's value. The mean and the
    population std are those of the values of all children of that node.

    The value R of a leaf is its total reward. The value of any other node is the plain mean of its children's values,
    regardless of how many leaves each child has. A branch is a child and all turns after it, up to and including the
    next turn with several children. All turns of a branch have the same advantage, and each branch is one sample of the
    loss (the edges of Eq. 47). On a tree that branches only at its root, the advantage of every turn is the group
    advantage of its leaf. Children without a valid leaf are left out of all means and have weight 0. In a tree that a
    gate stopped, every turn has weight 0. ``zero_variance`` applies to branch points whose children have equal values,
    and a root with one child.
    """

    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        value = backed_up(tree.children(), finite_rewards(tree, rewards, "total"))

        def relative(parent: int, children: Sequence[int]) -> dict[int, float] | None:
            return normalised({child: value[child] for child in children}, self.eps, self.tolerance)

        return branch_credit(tree, value, relative, 1.0 if self.zero_variance == "keep" else 0.0)


def backed_up(children: dict[int, list[int]], total: dict[int, float]) -> dict[int, float]:
    """Returns the value R (Eq. 45) of every turn on a path to a leaf of ``total``. R of a leaf is its total reward. R
    of any other turn is the mean of its children's R.
    """
    value = dict(total)
    for turn in sorted(children, reverse=True):
        below = [value[child] for child in children[turn] if child in value]
        if turn >= 0 and below:
            value[turn] = sum(below) / len(below)
    return value
