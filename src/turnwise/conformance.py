"""Tests somebody's own advantage, loss or mask for the silent faults that trainers have had.

    python -m turnwise.conformance my_module:my_advantage
    python -m turnwise.conformance my_module:my_loss --kind loss

The function is called with plain arguments, by the kind:

    advantage (rewards, groups) -> one number a sample; samples of equal ``groups`` answered the same prompt
    steps     (rewards, groups, rollouts) -> one number a step; the steps of a rollout all have its reward
    loss      (logprobs, old_logprobs, advantages, mask) -> scalar; PyTorch tensors (rows, tokens), advantages (rows,)
    mask      (turns) -> 0 or 1 for each token of a dialogue; turns are pairs (role, number of tokens)

Group-relative advantages may be divided by a standard deviation of either kind or not at all, and losses may be any
clipped surrogate with any mean over tokens: what is checked holds for all of them. Exit status: 0 all cases pass; 1 one
fails; 2 the function cannot be called.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from turnwise.console import Terminal
from turnwise.errors import InputError
from turnwise.programs import options, program

Check = Callable[[Callable[..., Any]], str | None]
"""A function that calls the tested function and returns what is wrong, or None."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    fault: str  # the mistake that this case finds
    check: Check


def case(kind: str, name: str, fault: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CASES.setdefault(kind, []).append(Case(name, fault, check))
        return check

    return add


CASES: dict[str, list[Case]] = {}
REWARDS, GROUPS = [1.0, 0.0, 0.25, 0.5, 3.0, 2.0, 2.0, 5.0], list("aaaabbbb")


def numbers(values: Any, count: int) -> list[float]:
    """The result of a function as floats; a tensor or array of shape (count,) or (count, 1) will do."""
    flat = values.detach() if hasattr(values, "detach") else values
    found = [float(x[0] if hasattr(x, "__len__") else x) for x in (flat.tolist() if hasattr(flat, "tolist") else flat)]
    if len(found) != count:
        raise ValueError(f"the result has {len(found)} numbers, but there are {count} samples")
    return found


def near(one: Sequence[float], other: Sequence[float], tolerance: float = 1e-4) -> bool:
    return all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in zip(one, other, strict=True))


def shown(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in values)}]"


# -- advantages of samples ---------------------------------------------------------------------------------------------


@case("advantage", "direction", "the sign is flipped")
def _(rule: Callable[..., Any]) -> str | None:
    found = numbers(rule([1.0, 0.0, 0.0, 1.0], list("aaaa")), 4)
    return None if found[0] > 0 > found[1] else f"rewards 1 0 0 1 of one group give {shown(found)}"


@case("advantage", "baseline", "the mean is taken over the batch, not over the group")
def _(rule: Callable[..., Any]) -> str | None:
    found = numbers(rule(REWARDS, GROUPS), 8)
    sums = [math.fsum(found[:4]), math.fsum(found[4:])]
    return None if near(sums, [0, 0], 1e-3) else f"the advantages of two groups add up to {shown(sums)}, not to 0"


@case("advantage", "other groups", "another group changes a group's advantages")
def _(rule: Callable[..., Any]) -> str | None:
    found, other = numbers(rule(REWARDS, GROUPS), 8), numbers(rule([*REWARDS[:4], 9.0, 1.0, 1.0, 1.0], GROUPS), 8)
    return None if near(found[:4], other[:4]) else f"{shown(found[:4])} becomes {shown(other[:4])}"


@case("advantage", "proportion", "advantages do not grow with the reward in a line")
def _(rule: Callable[..., Any]) -> str | None:
    found = numbers(rule(REWARDS[:4], GROUPS[:4]), 4)
    slope = (found[0] - found[1]) / (REWARDS[0] - REWARDS[1])
    expected = [slope * (reward - 0.4375) for reward in REWARDS[:4]]
    return None if near(found, expected, 1e-3) else f"rewards 1 0 0.25 0.5 give {shown(found)}, not {shown(expected)}"


@case("advantage", "interleaved groups", "samples are grouped by their places, not by their keys")
def _(rule: Callable[..., Any]) -> str | None:
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    found = numbers(rule(REWARDS, GROUPS), 8)
    mixed = numbers(rule([REWARDS[i] for i in order], [GROUPS[i] for i in order]), 8)
    return (
        None if near([found[i] for i in order], mixed) else f"{shown([found[i] for i in order])} becomes {shown(mixed)}"
    )


@case("advantage", "groups of unequal size", "a lost sample shifts the groups after it")
def _(rule: Callable[..., Any]) -> str | None:
    whole = numbers(rule(REWARDS, GROUPS), 8)
    less = numbers(rule(REWARDS[1:], GROUPS[1:]), 7)
    return None if near(whole[4:], less[3:]) else f"the second group's {shown(whole[4:])} becomes {shown(less[3:])}"


@case("advantage", "equal rewards", "0 / 0, or noise divided by a tiny standard deviation")
def _(rule: Callable[..., Any]) -> str | None:
    for reward in (1.0, 0.1, 1 / 3):
        found = numbers(rule([reward] * 3, list("aaa")), 3)
        if not near(found, [0, 0, 0], 1e-3):
            return f"three rewards of {reward:.3g} give {shown(found)}"
    return None


@case("advantage", "one sample", "the standard deviation of one sample is not a number")
def _(rule: Callable[..., Any]) -> str | None:
    found = numbers(rule([1.0, 0.0, 2.0], list("aab")), 3)
    if not all(map(math.isfinite, found)):
        return f"a group of one sample gives {shown(found)}"
    return (
        None
        if near(found[2:], [0])
        else f"a group of one sample has nothing to be compared with, but gets {found[2]:.3g}"
    )


@case("advantage", "shift", "a constant added to all rewards changes the advantages")
def _(rule: Callable[..., Any]) -> str | None:
    found, moved = numbers(rule(REWARDS, GROUPS), 8), numbers(rule([r + 10 for r in REWARDS], GROUPS), 8)
    return None if near(found, moved, 1e-3) else f"{shown(found)} becomes {shown(moved)}"


# -- advantages of steps -----------------------------------------------------------------------------------------------


@case("steps", "every step", "only some steps of a rollout get its advantage")
def _(rule: Callable[..., Any]) -> str | None:
    found = numbers(rule([1.0, 1.0, 1.0, 0.0], list("aaaa"), [0, 0, 0, 1]), 4)
    good = near(found[:3], found[:1] * 3) and found[0] > 0 > found[3]
    return None if good else f"three steps of a rollout that won and one of a rollout that lost get {shown(found)}"


@case(
    "steps", "rollouts, not steps", "long rollouts count more in the baseline, or steps are divided by the group's size"
)
def _(rule: Callable[..., Any]) -> str | None:
    found = numbers(rule([1.0, 1.0, 1.0, 0.0], list("aaaa"), [0, 0, 0, 1]), 4)
    return (
        None
        if near([found[0]], [-found[3]], 1e-3)
        else f"one win and one loss must be opposite, but are {shown(found)}"
    )


@case("steps", "number of steps", "a rollout's advantage depends on how many steps it has")
def _(rule: Callable[..., Any]) -> str | None:
    short = numbers(rule([1.0, 0.0, 0.0], list("aaa"), [0, 1, 2]), 3)
    long = numbers(rule([1.0, 1.0, 0.0, 0.0], list("aaaa"), [0, 0, 1, 2]), 4)
    good = near([short[0], *short[1:]], [long[1], *long[2:]], 1e-3)
    return None if good else f"{shown(short)} becomes {shown(long)} when the first rollout has two steps"


# -- losses ------------------------------------------------------------------------------------------------------------

OLD = [[-1.0, -2.0, -0.5, -1.5], [-0.7, -1.1, -2.2, -0.4]]
MASK = [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]


def gradient(
    loss: Callable[..., Any], ratios: Any, advantages: Sequence[float], mask: Any = MASK, old: Any = OLD
) -> Any:
    """The gradient with respect to the log-probs (rows, tokens), at these ratios to the old log-probs."""
    import torch  # only these cases need it

    start = torch.tensor(old, dtype=torch.float64)
    logprobs = (start + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    value = loss(
        logprobs, start, torch.tensor(advantages, dtype=torch.float64), torch.tensor(mask, dtype=torch.float64)
    )
    if not torch.isfinite(value):
        raise ValueError(f"the loss is {float(value)}")
    return torch.autograd.grad(value, logprobs)[0]


ONES = [[1.0] * 4] * 2


@case("loss", "mask", "the mask is inverted, or tokens of the environment are trained on")
def _(loss: Callable[..., Any]) -> str | None:
    import torch

    found, wanted = gradient(loss, ONES, [1.0, -1.0]) != 0, torch.tensor(MASK) > 0
    return (
        None if bool((found == wanted).all()) else f"gradient at {found.int().tolist()}, mask {wanted.int().tolist()}"
    )


@case("loss", "direction", "what was better than the mean becomes less likely")
def _(loss: Callable[..., Any]) -> str | None:
    found = gradient(loss, ONES, [1.0, -1.0])
    return (
        None if found[0, 1] < 0 < found[1, 0] else f"gradients {found[0, 1]:.3g} and {found[1, 0]:.3g} for A = 1 and -1"
    )


@case("loss", "clipped from above", "min and max are exchanged where the advantage is positive")
def _(loss: Callable[..., Any]) -> str | None:
    found = gradient(loss, [[1.0, 3.0, 0.2, 1.0], [1.0] * 4], [1.0, 1.0])
    good = found[0, 1] == 0 and found[0, 2] != 0
    return (
        None
        if good
        else f"A = 1: gradient {found[0, 1]:.3g} at ratio 3 (must be 0) and {found[0, 2]:.3g} at 0.2 (must not)"
    )


@case("loss", "clipped from below", "min and max are exchanged where the advantage is negative")
def _(loss: Callable[..., Any]) -> str | None:
    found = gradient(loss, [[1.0, 0.2, 3.0, 1.0], [1.0] * 4], [-1.0, 1.0])
    good = found[0, 1] == 0 and found[0, 2] != 0
    return (
        None
        if good
        else f"A = -1: gradient {found[0, 1]:.3g} at ratio 0.2 (must be 0) and {found[0, 2]:.3g} at 3 (must not)"
    )


@case("loss", "what is masked", "values under the mask reach the loss")
def _(loss: Callable[..., Any]) -> str | None:
    import torch

    other = [[-9.0, -2.0, -0.5, -9.0], [-0.7, -1.1, -9.0, -9.0]]
    one, two = gradient(loss, ONES, [1.0, -1.0]), gradient(loss, ONES, [1.0, -1.0], old=other)
    return None if bool(torch.allclose(one, two)) else "other log-probs under the mask change the gradient"


@case("loss", "padding", "columns of padding change the gradient")
def _(loss: Callable[..., Any]) -> str | None:
    import torch

    def wide(rows: Any, value: float) -> list[list[float]]:
        return [[*row, value, value] for row in rows]

    one = gradient(loss, ONES, [1.0, -1.0])
    two = gradient(loss, wide(ONES, 1.0), [1.0, -1.0], wide(MASK, 0.0), wide(OLD, 0.0))
    return None if bool(torch.allclose(one, two[:, :4])) else "two more columns of padding change the gradient"


@case("loss", "a row without tokens", "a row in which all is masked divides by 0")
def _(loss: Callable[..., Any]) -> str | None:
    import torch

    found = gradient(loss, ONES, [1.0, -1.0], [MASK[0], [0.0] * 4])
    good = bool(torch.isfinite(found).all()) and bool((found[0, 1:3] != 0).all())
    return None if good else f"a second row without tokens gives the gradients {found.tolist()}"


@case("loss", "old log-probs", "the ratio is not taken to the old log-probs")
def _(loss: Callable[..., Any]) -> str | None:
    found = gradient(loss, [[1.0, 1.1, 1.0, 1.0], [1.0] * 4], [1.0, -1.0])
    ratio = float(found[0, 1] / found[0, 2])
    return (
        None
        if math.isclose(ratio, 1.1, rel_tol=1e-3)
        else f"at ratio 1.1 the gradient must be 1.1 times that at 1, not {ratio:.3g}"
    )


# -- masks -------------------------------------------------------------------------------------------------------------

DIALOGUE = [("system", 2), ("user", 3), ("assistant", 2), ("tool", 4), ("assistant", 1), ("user", 2), ("assistant", 3)]


@case("mask", "every token", "the mask is shorter or longer than the dialogue")
def _(mask: Callable[..., Any]) -> str | None:
    found = len(list(mask(DIALOGUE)))
    return None if found == 17 else f"17 tokens have a mask of {found}"


@case("mask", "not inverted", "the policy is trained on what it read")
def _(mask: Callable[..., Any]) -> str | None:
    found = [int(x) for x in mask(DIALOGUE)]
    read = [found[i] for i in (0, 1, 2, 3, 4, 7, 8, 9, 10, 12, 13)]
    return None if not any(read) else "tokens of the system, the user or a tool are in the mask"


@case("mask", "every turn", "only the last turn of the policy is trained on")
def _(mask: Callable[..., Any]) -> str | None:
    found = [int(x) for x in mask(DIALOGUE)]
    own = [found[i] for i in (5, 6, 11, 14, 15, 16)]
    return None if all(own) else f"the policy's six tokens have the mask {own}"


# -- the program -------------------------------------------------------------------------------------------------------


def faults(kind: str, function: Callable[..., Any]) -> dict[str, str]:
    """Returns the names of the cases of a kind that the function fails, with what is wrong."""
    found = {}
    for each in CASES[kind]:
        try:
            wrong = each.check(function)
        except Exception as error:  # the function is somebody's own
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            found[each.name] = wrong
    return found


@program()
def main(arguments: list[str]) -> int:
    parser = options(__doc__)
    parser.add_argument("function", help="module:function, from the current folder or an installed package")
    parser.add_argument("--kind", choices=sorted(CASES), default="advantage")
    given = parser.parse_args(arguments)
    module, _, name = given.function.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{given.function}: {error}; give module:function, such as my_module:my_advantage") from error
    wrong = faults(given.kind, function)
    console = Terminal()
    for each in CASES[given.kind]:
        told = f"FAILS: {wrong[each.name]} ({each.fault})" if each.name in wrong else "passes"
        console.print(f"{each.name:24} {told}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(CASES[given.kind]) - len(wrong)} of {len(CASES[given.kind])} cases pass", highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
