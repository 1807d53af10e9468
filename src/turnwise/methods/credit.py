"""The interface of a credit rule (advantage), the group-relative advantage, and rules that compare the branches of a
tree: Tree-GRPO (arXiv:2509.21240) as TRACE (arXiv:2606.11119) gives it in Eqs. 48-49, and Monte Carlo values of
turns, after an idea of VinePPO (arXiv:2410.01679). conf/advantage explains the options of each rule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

from annotated_types import Ge

from turnwise.types import Credit, Rewards, RolloutTree


class Advantage(Protocol):
    """An advantage rule, which computes the credit (advantage and weight of each turn) of one tree. A rule that
    compares all trees of an update is a :class:`BatchAdvantage`.

    If the rule has an attribute ``zero_variance`` with the value ``refill``, trees from other states replace trees in
    which every turn has weight 0 (``rollout.max_refills``).
    """

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit: ...


_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Credited:
    """The credit that an advantage rule gives to the trees of an update, values for the next update, and metrics."""

    credits: list[Credit]  # aligned with the trees
    memory: Mapping[str, float] = field(default_factory=dict)  # passed to the next update; saved in checkpoints
    metrics: Mapping[str, float] = field(default_factory=dict)  # logged under ``train/``


@runtime_checkable
class BatchAdvantage(Protocol):
    """An advantage rule that needs all trees of an update at once, or values from earlier updates.

    The rule stores nothing. The training loop stores the ``memory`` that the rule returns, and passes it to the rule in
    the next update. In the first update ``memory`` is empty. If trees without a learning signal are replaced, the
    training loop calls the rule again for the larger batch, with the memory of the previous update.
    """

    def over(
        self, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]
    ) -> Credited: ...

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        """The credit of a tree that is alone in the first update."""
        return self.over([tree], [rewards], {}).credits[0]


def credit_all(
    rule: Advantage, trees: Sequence[RolloutTree], rewards: Sequence[Rewards], memory: Mapping[str, float]
) -> Credited:
    if isinstance(rule, BatchAdvantage):
        return rule.over(trees, rewards, memory)
    return Credited([rule(tree, rewarded) for tree, rewarded in zip(trees, rewards, strict=True)], memory)


def spread(tree: RolloutTree, leaf_advantage: Mapping[int, float]) -> Credit:
    """Returns the credit (advantage and weight) of every turn of a tree, given the advantages of some leaves.

    ``leaf_advantage`` maps the turn index of a leaf to the leaf's advantage. A turn receives the sum of the advantages
    of the leaves below it. So in a tree that branches only at its root, every turn of a path has the advantage of the
    path's leaf. In other trees, a turn that several paths share gets the sum of the gradients that a separate copy of
    the turn in each path would get. The weight of a turn is 1 if ``leaf_advantage`` has a leaf below it, else 0.
    """
    return spread_turns(tree, {leaf: [value] * len(tree.path(leaf)) for leaf, value in leaf_advantage.items()})


def spread_turns(tree: RolloutTree, path_advantage: Mapping[int, Sequence[float]]) -> Credit:
    """Returns the credit of every turn like :func:`spread`, for advantages that differ between the turns of a path.

    ``path_advantage`` maps a leaf to one advantage for each turn of the leaf's path, starting with the first turn after
    the root.
    """
    advantage = [0.0] * len(tree.turns)
    weight = [0.0] * len(tree.turns)
    for leaf, values in path_advantage.items():
        for turn, value in zip(tree.path(leaf), values, strict=True):
            advantage[turn] += value
            weight[turn] = 1.0
    return Credit(advantage, weight)


def branch_credit(
    tree: RolloutTree,
    used: Collection[int],
    advantages: Callable[[int, Sequence[int]], Mapping[int, float] | None],
    quiet: float,
) -> Credit:
    """Returns the credit of every turn for advantages among the children of a node.

    All turns from one branch point to the next have the advantage of the first of them and are one sample of the loss.

    Args:
        used: the turns above a valid leaf. Other turns have weight 0.
        advantages: returns the advantages of the children of a node, or None if their values are equal. Its arguments
            are the node (-1 is the root) and its children in ``used``.
        quiet: weight of children whose values are equal.
    """
    credit = Credit([0.0] * len(tree.turns), [0.0] * len(tree.turns), sample=list(range(len(tree.turns))))
    assert credit.sample is not None
    children = tree.children()
    for parent in range(-1, len(tree.turns)):  # parents come before their children
        group = [child for child in children[parent] if child in used]
        of_children = advantages(parent, group) if group else None
        for child in group:
            if len(group) == 1 and parent >= 0:
                credit.advantage[child], credit.weight[child] = credit.advantage[parent], credit.weight[parent]
                credit.sample[child] = credit.sample[parent]
            else:
                credit.advantage[child], credit.weight[child] = (
                    (of_children[child], 1.0) if of_children else (0.0, quiet)
                )
    return credit


def leaf_rewards(tree: RolloutTree, rewards: Rewards, name: str) -> dict[int, float]:
    """The reward ``name`` of every leaf whose environment did not fail, by the leaf's turn index."""
    leaves = tree.leaves()
    if name not in rewards:
        raise ValueError(
            f"state {tree.state.id!r}: the advantage needs the reward {name!r}, but the run's reward returns only "
            f"{', '.join(sorted(rewards))}"
        )
    if len(rewards[name]) != len(leaves):
        raise ValueError(
            f"state {tree.state.id!r}: the reward must return one value {name!r} for each of the {len(leaves)} leaves "
            f"of the tree, but it returned {len(rewards[name])}"
        )
    return {leaf: float(r) for leaf, r in zip(leaves, rewards[name], strict=True) if leaf not in tree.invalid}


def finite_rewards(tree: RolloutTree, rewards: Rewards, name: str) -> dict[int, float]:
    """The result of :func:`leaf_rewards`, whose values must be finite; empty for a tree that a gate stopped."""
    if tree.stopped:
        return {}
    rewards_of = leaf_rewards(tree, rewards, name)
    for leaf, value in rewards_of.items():
        if not math.isfinite(value):
            raise ValueError(
                f"state {tree.state.id!r}: the {name} reward of leaf {leaf} is {value}. A leaf whose reward could "
                "not be computed must be marked as invalid (RolloutTree.invalid), so that the statistics leave it out"
            )
    return rewards_of


def mean(values: Collection[float]) -> float:
    """Rounds the sum only once (``math.fsum``)."""
    return math.fsum(values) / len(values)


def std(values: Collection[float]) -> float:
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / len(values))


ZeroVariance = Literal["keep", "drop", "refill"]
"""The ways to handle a group whose rewards are equal. ``keep`` gives it advantage 0 (it counts in every mean and
receives the KL term). ``drop`` gives it weight 0. ``refill`` drops it and, if the whole tree is dropped, samples
rollouts from another state instead (DAPO, arXiv:2503.14476).
"""


def normalised(
    group: Mapping[_Key, float], eps: float, tolerance: float, scale: bool = True
) -> dict[_Key, float] | None:
    """Returns (value - mean) / (std + eps) of each value of a group, or value - mean without ``scale``; None for fewer
    than two values or a std of at most ``tolerance``.
    """
    spread = std(group.values()) if len(group) > 1 else 0.0
    if spread <= tolerance:
        return None
    centre, norm = mean(group.values()), spread + eps if scale else 1.0
    return {key: (value - centre) / norm for key, value in group.items()}


Baseline = Literal["mean", "leave_one_out"]


@dataclass(frozen=True, slots=True)
class GroupAdvantage:
    """Computes A_i = (r_i - baseline) / (std + eps) for each valid leaf i of a tree, with the population std.

    This is the advantage of GRPO, PivotRL (Eq. 1) and Selective Rollout (Eq. 1). A leaf is valid if its environment did
    not fail. Only valid leaves count in the statistics and are trained on. The advantage is exactly 0 in a group whose
    std is at most ``tolerance`` or that has fewer than two valid leaves. A tree that a gate stopped is never trained
    on. A turn receives the sum of the advantages of the leaves below it (:func:`spread`). Dr.GRPO (arXiv:2503.20783)
    does not ``scale``; RLOO (arXiv:2402.14740) has the baseline ``leave_one_out``. A group of equal rewards counts in the
    loss's mean and in its KL with ``zero_variance="keep"``, and leaves both with ``"drop"``.
    """

    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    scale: bool = True
    baseline: Baseline = "mean"
    zero_variance: ZeroVariance = "keep"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        if len(total) < 2 or std(total.values()) <= self.tolerance:
            return spread(tree, dict.fromkeys(total, 0.0) if self.zero_variance == "keep" else {})
        advantages = group_advantages([*total.values()], self.eps, self.scale, self.baseline)
        return spread(tree, dict(zip(total, advantages, strict=True)))


def group_advantages(
    rewards: Sequence[float], eps: float = 1e-6, scale: bool = True, baseline: Baseline = "mean"
) -> list[float]:
    """Returns the advantage of each of at least two rewards, as :class:`GroupAdvantage` describes it."""
    # r_i minus the mean of the others equals n / (n - 1) times (r_i minus the mean of all)
    factor = len(rewards) / (len(rewards) - 1) if baseline == "leave_one_out" else 1.0
    if scale:
        factor /= std(rewards) + eps
    centre = mean(rewards)
    return [(reward - centre) * factor for reward in rewards]


def group(tree: RolloutTree, rewards: Rewards, **options: Any) -> Credit:
    """The credit of one tree by ``GroupAdvantage(**options)``, for a notebook."""
    return GroupAdvantage(**options)(tree, rewards)


@dataclass(frozen=True, slots=True)
class TreeGRPO:
    """Computes A_i = A_intra + A_inter for each valid leaf i with total reward r_i. A_intra and A_inter are (r_i -
    mean) / (std + eps), each with the mean and the population std of a group that contains the leaf.

    The inter-tree group (for A_inter) consists of all valid leaves of the prompt. The intra-tree group (for A_intra)
    consists of the leaves that share a prefix with leaf i: with ``siblings``, the leaves below the last turn at which
    the leaf's path branches; with ``tree``, the leaves of one root rollout and of all rollouts that branched from it.
    A_intra or A_inter is 0 if all rewards of its group are equal. A leaf that is alone in its intra-tree group has
    A_intra = 0. Each turn receives the sum of the advantages of the leaves below it. A tree that a gate stopped is
    never trained on.

    Attributes:
        tolerance: std at or below which rewards count as equal.
        intra: which leaves form the intra-tree group.
        zero_variance: what to do with a tree whose rewards are all equal
            (:data:`turnwise.methods.credit.ZeroVariance`).
    """

    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    intra: Literal["siblings", "tree"] = "siblings"
    zero_variance: ZeroVariance = "drop"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        advantage = normalised(total, self.eps, self.tolerance)
        if advantage is None:
            return spread(tree, dict.fromkeys(total, 0.0) if self.zero_variance == "keep" else {})
        for leaf, group in self._groups(tree, total).items():
            if intra := normalised({member: total[member] for member in group}, self.eps, self.tolerance):
                advantage[leaf] += intra[leaf]
        return spread(tree, advantage)

    def _groups(self, tree: RolloutTree, total: dict[int, float]) -> dict[int, list[int]]:
        below: dict[int, list[int]] = defaultdict(list)
        for leaf in total:
            for turn in tree.path(leaf):
                below[turn].append(leaf)
        if self.intra == "tree":
            return {leaf: below[tree.path(leaf)[0]] for leaf in total}
        children = tree.children()
        groups = {}
        for leaf in total:
            for turn in reversed(tree.path(leaf)):
                if sum(child in below for child in children[turn]) > 1:
                    groups[leaf] = below[turn]
                    break
        return groups


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """Computes A(turn) = V(after) - V(before), where V(node) is the mean total reward of the valid leaves below the
    node.

    V before the first turn is the V of the root. All turns from one branch point to the next count as one step: V does
    not change between them, so each later turn would have advantage 0. All turns of a step have the advantage of the
    step's first turn, and they are one sample of the loss, as in :class:`turnwise.methods.trace.TreeRPO`.
    (VinePPO starts new rollouts at every step, so each step has its own value, as in a tree that branches at every
    turn.) The advantages of the steps of a path add up to the path's total minus the root's mean. The advantages of
    siblings, weighted by their numbers of leaves, add up to 0. On a tree that branches only at its root, the advantage
    of every turn is the group advantage of its leaf (not divided by a std if ``scale`` is False).

    There are two differences from TreeRPO: a node's value weighs all leaves equally, not all children, and siblings are
    not normalised among themselves. Turns without a valid leaf below them are left out of all means and have weight 0.
    In a tree that a gate stopped, every turn has weight 0. ``scale`` divides by the population std of the totals of all
    valid leaves; ``zero_variance`` is about branch points whose children have equal values, and a root with one child.
    """

    scale: bool = True
    eps: Annotated[float, Ge(0)] = 1e-6
    tolerance: Annotated[float, Ge(0)] = 1e-6
    zero_variance: ZeroVariance = "drop"

    def __call__(self, tree: RolloutTree, rewards: Rewards) -> Credit:
        total = finite_rewards(tree, rewards, "total")
        value = leaf_means(tree, total)
        norm = std(total.values()) + self.eps if self.scale and total else 1.0

        def differences(parent: int, children: Sequence[int]) -> dict[int, float] | None:
            if std([value[child] for child in children]) <= self.tolerance:
                return None
            return {child: (value[child] - value[parent]) / norm for child in children}

        return branch_credit(tree, value, differences, 1.0 if self.zero_variance == "keep" else 0.0)


def leaf_means(tree: RolloutTree, total: dict[int, float]) -> dict[int, float]:
    """Returns V of the root (key -1) and of every turn on a path to a leaf of ``total``. V of a node is the mean total
    reward of the leaves below the node; V of a leaf is its own total.
    """
    below: dict[int, list[float]] = defaultdict(list)
    for leaf, value in total.items():
        for turn in (-1, *tree.path(leaf)):
            below[turn].append(value)
    return {turn: mean(values) for turn, values in below.items()}
