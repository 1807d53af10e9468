"""Rewards that compare a single action with the demonstrated one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from turnwise.algo.rewards.reward import demonstrated_calls, made_calls, recorded_locally, single_actions
from turnwise.data.match_calls import equivalent, identical
from turnwise.data.toolcalls import Format
from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Exact:
    """Returns the reward ``strict``: 1 if the action a is exactly the demonstrated action a*(s) of the state s, else 0
    (PivotRL Eq. 2). The value was recorded in ``turn.info["strict"]`` when the action was sampled.
    """

    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        return recorded_locally(tree, "strict", "exact")


@dataclass(frozen=True, slots=True)
class Functional:
    """Returns the reward ``functional``: 1 if the action a is in M(s), the set of acceptable actions in the state s,
    else 0 (PivotRL Eq. 6). The value was recorded in ``turn.info["functional"]`` when the action was sampled.
    """

    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        return recorded_locally(tree, "functional", "functional")


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Returns three rewards, each 0 or 1, that compare an action's tool calls with the demonstrated calls (our
    rules for the functional equivalence of PivotRL, arXiv:2603.21383, which defines them for other domains).

    ``format`` is 1 if the action can be parsed and was not cut off. ``functional`` is 1 if the calls can be matched one
    to one with equivalent demonstrated calls (:func:`turnwise.data.match_calls.equivalent`). ``strict`` is 1 if the
    calls are identical to the demonstrated calls and have the same order. An action that cannot be parsed or was cut
    off gets 0 for all three. If no call was demonstrated, only an action without calls gets ``functional`` and
    ``strict`` 1.

    Attributes:
        format: the text format of tool calls, in the policy's actions and in the demonstrations. With None, the run
            uses the format of the environment or the policy (``training.call_format``).
        exact: whether ``total`` is ``strict`` (True) or ``functional`` (False).
    """

    format: Format | None = "hermes"
    exact: bool = False
    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        expected = demonstrated_calls(tree.state, self.format)
        form, functional, strict = [], [], []
        for leaf in single_actions(tree, "toolcalls"):
            turn = tree.turns[leaf]
            readable = good = same = math.nan
            if leaf not in tree.invalid:
                readable = good = same = 0.0
                made = made_calls(turn.text, self.format)
                if made is not None and not turn.truncated:
                    readable = 1.0
                    good, same = float(equivalent(made, expected)), float(identical(made, expected))
            form.append(readable)
            functional.append(good)
            strict.append(same)
        return {
            "format": form,
            "functional": functional,
            "strict": strict,
            "total": strict if self.exact else functional,
        }
