"""The graded reward of a step with tool calls: rates the action's format, and its calls against the demonstration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from turnwise.algo.rewards.reward import demonstrated_calls, made_calls, single_actions
from turnwise.data.match_calls import same_value
from turnwise.data.toolcalls import Format
from turnwise.types import Rewards, RolloutTree, ToolCall


@dataclass(frozen=True, slots=True)
class Graded:
    """Computes R_out = S_format + S_exec in [0, 2], the outcome reward of an action (AWPO, arXiv:2512.19126, Eqs.
    11-16).

    The reward ``format`` (S_format) is 1 if the action can be parsed and was not cut off, else 0. The reward ``exec``
    (S_exec) is the :func:`execution_score` of the calls in the action, compared with the demonstrated calls. An action
    that cannot be parsed executes nothing, so its ``exec`` is 0 even if no call was expected. The rewards ``outcome``
    and ``total`` are both R_out, the sum of ``format`` and ``exec``.

    Attributes:
        format: the text format of tool calls, in the policy's actions and in the demonstrations. With None, the run
            uses the format of the environment or the policy (``training.call_format``).
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

    The score is exactly 1 if every expected call was made with its arguments and no other tool was called. The score is
    the sum of

    - r_name: Jaccard similarity of the sets of tool names;
    - r_para: for each expected call, the Jaccard similarity of its parameter names with those of the matched call (two
      empty sets count as equal);
    - r_value: the number of expected parameters that have exactly the expected value;

    divided by 1 + number of expected calls + number of their parameters.

    A call can only match an expected call of the same tool, and each call is matched at most once. Among all these
    matchings, the score uses the matching with the greatest r_para + r_value. (The paper assumes one call per tool.) If
    no call is expected, the score is 1 if no call was made, else 0. As in the paper, additional calls of an expected
    tool do not lower the score.
    """
    if not expected and not made:
        return 1.0
    names, named = {call.name for call in expected}, {call.name for call in made}
    agreement = np.array([[_agreement(true, call) for call in made] for true in expected]).reshape(
        len(expected), len(made)
    )
    matched = agreement[linear_sum_assignment(agreement, maximize=True)].sum()
    parameters = sum(len(call.arguments) for call in expected)
    return float(len(names & named) / len(names | named) + matched) / (1 + len(expected) + parameters)


def _agreement(true: ToolCall, call: ToolCall) -> float:
    """r_para + r_value (Eqs. 14-15); 0 if the tools differ."""
    if true.name != call.name:
        return 0.0
    keys, given = true.arguments.keys(), call.arguments.keys()
    jaccard = len(keys & given) / len(keys | given) if keys | given else 1.0
    return jaccard + sum(same_value(true.arguments[key], call.arguments[key]) for key in keys & given)
