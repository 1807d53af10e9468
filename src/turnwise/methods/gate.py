"""The interface of a gate, which may stop a group of rollouts before its end, what a gate sees of the group's first
turns, and a gate by predicted success.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval

from turnwise.types import GateDecision, Judge, RolloutTree, Value

# replaces the action and observation of a rollout that has ended; an empty text would not do, because a reply may be empty
ENDED = "\0"


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The actions and observations of a group of rollouts after ``step`` turns. Each tuple has one entry per rollout.

    A rollout that has ended keeps its actions, so its entry in ``actions`` may have fewer than ``step`` actions. Its
    entries in ``last_actions`` and ``last_observations`` are ``ENDED``, whatever its last turn was. The results agree
    with the released table of arXiv:2605.05802 only with this convention.
    """

    step: int
    actions: tuple[tuple[str, ...], ...]  # for each rollout, its first ``step`` actions (texts of ``symbol``)
    last_actions: tuple[str, ...]  # the actions at step ``step`` itself
    last_observations: tuple[str, ...]
    ended: tuple[bool, ...]


def symbol(text: str) -> str:
    """Returns the text by which gates compare an action: without reasoning (up to ``</think>``, or up to the last
    ``Action:`` of a ReAct reply), spaces normalised.
    """
    return " ".join(text.rpartition("</think>")[2].rpartition("Action:")[2].split())


def prefixes(
    actions: Sequence[Sequence[str]], observations: Sequence[Sequence[str]], ended: Sequence[bool], step: int
) -> Prefixes:
    """Returns the :class:`Prefixes` of a group of rollouts after ``step`` turns, given the actions and observations of
    each rollout in order of turns, and whether each rollout has ended after at most ``step`` turns. Later turns are not
    read.
    """
    return Prefixes(
        step,
        tuple(tuple(symbol(text) for text in taken[:step]) for taken in actions),
        tuple(ENDED if over else symbol(taken[step - 1]) for taken, over in zip(actions, ended, strict=True)),
        tuple(ENDED if over else seen[step - 1] for seen, over in zip(observations, ended, strict=True)),
        tuple(ended),
    )


def group_at(tree: RolloutTree, step: int, over: bool = False) -> Prefixes | None:
    """Returns the first ``step`` turns of the rollouts of ``tree``, or None if a gate has nothing to decide.

    All valid rollouts of the tree must have taken ``step`` turns or ended before; some may have taken more. The result
    is None if all rollouts have ended and ``over`` is False, if fewer than two rollouts are valid, or if rollouts
    branched below the root. Rollouts that branched from one turn share their first turns by construction, so equal
    first turns show nothing.
    """
    every = [tree.path(leaf) for leaf in tree.leaves()]
    if sum(map(len, every)) != len(tree.turns):
        return None
    paths = [[tree.turns[i] for i in path] for path in every if path[-1] not in tree.invalid]
    # A turn has the tokens of its observation only if its rollout goes on.
    ended = [len(path) <= step and not path[-1].observation_ids for path in paths]
    if len(paths) < 2 or (all(ended) and not over):
        return None
    return prefixes(
        [[turn.text for turn in path] for path in paths],
        [[turn.observation for turn in path] for path in paths],
        ended,
        step,
    )


class Gate:
    """Base class of all gates. A gate decides whether to stop the rollouts of a tree early. It appends its decisions to
    ``tree.looks`` and changes nothing else in the tree.
    """

    __slots__ = ()

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        """Returns whether to stop the tree. The gate is called once for each ``step`` (turns since the root), in order.

        The gate is called when every rollout from the root has taken ``step`` turns or has ended, and at least one of
        them has not ended. Some rollouts may have taken more turns. The gate is not called after all rollouts from
        the root have ended: only continuations of these rollouts follow, and continuations agree because they share a
        prefix.
        """
        raise NotImplementedError

    def looks_at(self, step: int) -> bool:
        """Returns whether rollouts wait after ``step`` turns for the gate's decision (``engine.schedule=free``)."""
        return False

    def at_end(self, tree: RolloutTree) -> bool:
        """Returns whether to drop a tree that was not stopped and whose rollouts from the root have all ended."""
        return False


class AtStep(Gate):
    """A gate that decides when the rollouts of a group have taken ``k`` turns. The decision is based on these turns. A
    subclass that overrides :meth:`looks_at` can decide at other steps.

    ``over`` says whether the gate also decides on a group whose rollouts have all ended by then. No rollout of that
    group is left to stop, but the group can still be left out of the update. The second tier of arXiv:2605.05802 does
    this: it computes d_K (mean edit distance of the first K actions) from a buffer of finished rollouts. A subclass
    declares ``k``, and ``over`` where it shall be a setting.
    """

    __slots__ = ()
    k: int
    over: bool = False

    def looks_at(self, step: int) -> bool:
        return step == self.k

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        """Decides by the first turns of the group's rollouts. The decision is recorded in ``tree.looks``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method decision(tree, group)")

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        group = group_at(tree, step) if self.looks_at(step) else None
        return group is not None and noted(tree, self.decision(tree, group))

    def at_end(self, tree: RolloutTree) -> bool:
        group = group_at(tree, self.k, over=True) if self.over and not tree.looks else None
        return group is not None and noted(tree, self.decision(tree, group))


def noted(tree: RolloutTree, decision: GateDecision) -> bool:
    """Appends a gate's decision to ``tree.looks``, which reports read. Returns whether the decision stops the tree."""
    tree.looks.append(decision)
    return decision.stop


@dataclass(frozen=True, slots=True)
class Never(Gate):
    """Lets every rollout run to its end."""

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        return False


def draw(seed: int | str, tree: RolloutTree) -> float:
    """A number in [0, 1) that depends only on the seed, the state and the policy version."""
    return random.Random(f"{seed} {tree.version} {tree.state.id}").random()


MIXED = "mixed_probability"


@dataclass(frozen=True, slots=True)
class Predicted(AtStep):
    """Stops a tree at step K (after ``k`` turns) if its rollouts are unlikely to contain both a success and a failure.

    The gate uses TRACE's success predictor where Selective Rollout uses the distance between rollouts
    (arXiv:2605.05802, Eq. 2). The probability of both a success and a failure is that of arXiv:2606.11119, Eq. 12, but
    with a separate probability of success for each rollout. For a rollout that has ended, the probability of success is
    its reward. For any other rollout, it is the predicted value of the rollout's history before its action at step K.

    The share ``spared`` of the trees, drawn by state and policy version, is played on whatever is predicted: a predictor
    that stops every group would never learn that it is wrong. With ``threshold`` 0 the gate only records decisions.
    """

    value: Value
    reward: Judge
    k: Annotated[int, Ge(1)] = 10
    threshold: Annotated[float, Interval(ge=0, le=1)] = 0.1
    spared: Annotated[float, Interval(ge=0, le=1)] | None = 0.1

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        step = group.step
        (values,) = self.value([tree])  # the value of the state, then the value after each turn
        total = self.reward(tree)["total"]
        success = []
        for number, leaf in enumerate(tree.leaves()):
            path = tree.path(leaf)
            if leaf not in tree.invalid:
                ended = len(path) <= step and not tree.turns[leaf].observation_ids
                success.append(total[number] if ended else values[tree.turns[path[step - 1]].parent + 1])
        mixed = mixed_probability(success)
        stop = mixed < self.threshold and draw("spared", tree) >= (self.spared or 0)
        return GateDecision(self.k, {MIXED: mixed}, stop)


def mixed_probability(success_G: Sequence[float]) -> float:
    """The probability that independent rollouts with these success probabilities differ in outcome."""
    return 1 - math.prod(success_G) - math.prod(1 - v for v in success_G)
