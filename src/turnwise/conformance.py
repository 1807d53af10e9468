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
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.console import Terminal
from turnwise.errors import InputError
from turnwise.programs import options, program

Check = Callable[[Callable[..., Any]], None]
"""Calls the tested function, and raises :class:`Wrong` for what it finds."""


class Wrong(Exception):
    """What is wrong about the tested function."""


class Case(NamedTuple):
    name: str
    fault: str  # the mistake that this case finds
    check: Check


CASES: dict[str, list[Case]] = {}


def case(kind: str, name: str, fault: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        CASES.setdefault(kind, []).append(Case(name, fault, check))
        return check

    return add


def require(right: object, otherwise: str) -> None:
    if not bool(right):
        raise Wrong(otherwise)


def numbers(values: Any, count: int) -> list[float]:
    """The result of a function as floats; a tensor or array of shape (count,) or (count, 1) will do."""
    flat = values.detach() if hasattr(values, "detach") else values
    numbers = [
        float(x[0] if hasattr(x, "__len__") else x) for x in (flat.tolist() if hasattr(flat, "tolist") else flat)
    ]
    if len(numbers) != count:
        raise ValueError(f"the result has {len(numbers)} numbers, but there are {count} samples")
    return numbers


def near(one: Sequence[float], other: Sequence[float], tolerance: float = 1e-4) -> bool:
    return all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in zip(one, other, strict=True))


def shown(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in values)}]"


def require_same(one: Sequence[float], other: Sequence[float], when: str = "", tolerance: float = 1e-4) -> None:
    require(near(one, other, tolerance), f"{shown(one)} becomes {shown(other)}{when}")


# -- advantages of samples ---------------------------------------------------------------------------------------------

REWARDS, GROUPS = [1.0, 0.0, 0.25, 0.5, 3.0, 2.0, 2.0, 5.0], list("aaaabbbb")


def credit(rule: Callable[..., Any], rewards: Sequence[float] = REWARDS, *keys: Sequence[Any]) -> list[float]:
    return numbers(rule(rewards, *(keys or (GROUPS[: len(rewards)],))), len(rewards))


@case("advantage", "direction", "the sign is flipped")
def _(rule: Callable[..., Any]) -> None:
    found = credit(rule, [1.0, 0.0, 0.0, 1.0])
    require(found[0] > 0 > found[1], f"rewards 1 0 0 1 of one group give {shown(found)}")


@case("advantage", "baseline", "the mean is taken over the batch, not over the group")
def _(rule: Callable[..., Any]) -> None:
    found = credit(rule)
    sums = [math.fsum(found[:4]), math.fsum(found[4:])]
    require(near(sums, [0, 0], 1e-3), f"the advantages of two groups add up to {shown(sums)}, not to 0")


@case("advantage", "other groups", "another group changes a group's advantages")
def _(rule: Callable[..., Any]) -> None:
    require_same(credit(rule)[:4], credit(rule, [*REWARDS[:4], 9.0, 1.0, 1.0, 1.0])[:4])


@case("advantage", "proportion", "advantages do not grow with the reward in a line")
def _(rule: Callable[..., Any]) -> None:
    found = credit(rule, REWARDS[:4])
    slope = (found[0] - found[1]) / (REWARDS[0] - REWARDS[1])
    expected = [slope * (reward - 0.4375) for reward in REWARDS[:4]]
    require(near(found, expected, 1e-3), f"rewards 1 0 0.25 0.5 give {shown(found)}, not {shown(expected)}")


@case("advantage", "interleaved groups", "samples are grouped by their places, not by their keys")
def _(rule: Callable[..., Any]) -> None:
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    found = credit(rule)
    mixed = credit(rule, [REWARDS[i] for i in order], [GROUPS[i] for i in order])
    require_same([found[i] for i in order], mixed)


@case("advantage", "groups of unequal size", "a lost sample shifts the groups after it")
def _(rule: Callable[..., Any]) -> None:
    require_same(credit(rule)[4:], credit(rule, REWARDS[1:], GROUPS[1:])[3:])


@case("advantage", "equal rewards", "0 / 0, or noise divided by a tiny standard deviation")
def _(rule: Callable[..., Any]) -> None:
    for reward in (1.0, 0.1, 1 / 3):
        found = credit(rule, [reward] * 3)
        require(near(found, [0, 0, 0], 1e-3), f"three rewards of {reward:.3g} give {shown(found)}")


@case("advantage", "one sample", "the standard deviation of one sample is not a number")
def _(rule: Callable[..., Any]) -> None:
    found = credit(rule, [1.0, 0.0, 2.0], list("aab"))
    require(all(map(math.isfinite, found)), f"a group of one sample gives {shown(found)}")
    require(near(found[2:], [0]), f"a group of one sample has nothing to be compared with, but gets {found[2]:.3g}")


@case("advantage", "shift", "a constant added to all rewards changes the advantages")
def _(rule: Callable[..., Any]) -> None:
    require_same(credit(rule), credit(rule, [reward + 10 for reward in REWARDS]), tolerance=1e-3)


# -- advantages of steps -----------------------------------------------------------------------------------------------


def of_two(rule: Callable[..., Any]) -> list[float]:
    """Three steps of a rollout that won, and one of a rollout that lost."""
    return credit(rule, [1.0, 1.0, 1.0, 0.0], list("aaaa"), [0, 0, 0, 1])


@case("steps", "every step", "only some steps of a rollout get its advantage")
def _(rule: Callable[..., Any]) -> None:
    found = of_two(rule)
    good = near(found[:3], found[:1] * 3) and found[0] > 0 > found[3]
    require(good, f"three steps of a rollout that won and one of a rollout that lost get {shown(found)}")


@case("steps", "rollouts, not steps", "long rollouts count more in the baseline, or steps are divided by group size")
def _(rule: Callable[..., Any]) -> None:
    found = of_two(rule)
    require(near([found[0]], [-found[3]], 1e-3), f"one win and one loss must be opposite, but are {shown(found)}")


@case("steps", "number of steps", "a rollout's advantage depends on how many steps it has")
def _(rule: Callable[..., Any]) -> None:
    short = credit(rule, [1.0, 0.0, 0.0], list("aaa"), [0, 1, 2])
    long = credit(rule, [1.0, 1.0, 0.0, 0.0], list("aaaa"), [0, 0, 1, 2])
    require_same(short, long[1:], " when the first rollout has two steps", 1e-3)


# -- losses ------------------------------------------------------------------------------------------------------------

OLD = [[-1.0, -2.0, -0.5, -1.5], [-0.7, -1.1, -2.2, -0.4]]
MASK = [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
ONES = [[1.0] * 4] * 2
BOTH = [1.0, -1.0]


def gradient(
    loss: Callable[..., Any], ratios: Any = ONES, advantages: Any = BOTH, mask: Any = MASK, old: Any = OLD
) -> Any:
    """The gradient with respect to the log-probs (rows, tokens), at these ratios to the old log-probs."""
    import torch  # only these cases need it

    start, ratio, advantage, masked = (torch.tensor(x, dtype=torch.float64) for x in (old, ratios, advantages, mask))
    logprobs = (start + ratio.log()).requires_grad_()
    value = loss(logprobs, start, advantage, masked)
    if not torch.isfinite(value):
        raise ValueError(f"the loss is {float(value)}")
    return torch.autograd.grad(value, logprobs)[0]


@case("loss", "mask", "the mask is inverted, or tokens of the environment are trained on")
def _(loss: Callable[..., Any]) -> None:
    found = (gradient(loss) != 0).int().tolist()
    require(found == MASK, f"gradient at {found}, mask {MASK}")


@case("loss", "direction", "what was better than the mean becomes less likely")
def _(loss: Callable[..., Any]) -> None:
    found = gradient(loss)
    require(found[0, 1] < 0 < found[1, 0], f"gradients {found[0, 1]:.3g} and {found[1, 0]:.3g} for A = 1 and -1")


def _clipped(loss: Callable[..., Any], advantage: float, cut: float, inside: float) -> None:
    found = gradient(loss, [[1.0, cut, inside, 1.0], [1.0] * 4], [advantage, 1.0])
    told = f"A = {advantage:g}: gradient {found[0, 1]:.3g} at ratio {cut:g} (must be 0) and {found[0, 2]:.3g} at {inside:g}"
    require(found[0, 1] == 0 and found[0, 2] != 0, f"{told} (must not)")


@case("loss", "clipped from above", "min and max are exchanged where the advantage is positive")
def _(loss: Callable[..., Any]) -> None:
    _clipped(loss, 1.0, cut=3.0, inside=0.2)


@case("loss", "clipped from below", "min and max are exchanged where the advantage is negative")
def _(loss: Callable[..., Any]) -> None:
    _clipped(loss, -1.0, cut=0.2, inside=3.0)


@case("loss", "what is masked", "values under the mask reach the loss")
def _(loss: Callable[..., Any]) -> None:
    other = gradient(loss, old=[[-9.0, -2.0, -0.5, -9.0], [-0.7, -1.1, -9.0, -9.0]])
    require(gradient(loss).allclose(other), "other log-probs under the mask change the gradient")


@case("loss", "padding", "columns of padding change the gradient")
def _(loss: Callable[..., Any]) -> None:
    ratios, mask, old = (
        [[*row, value, value] for row in rows] for rows, value in ((ONES, 1.0), (MASK, 0.0), (OLD, 0.0))
    )
    wide = gradient(loss, ratios, BOTH, mask, old)
    require(gradient(loss).allclose(wide[:, :4]), "two more columns of padding change the gradient")


@case("loss", "a row without tokens", "a row in which all is masked divides by 0")
def _(loss: Callable[..., Any]) -> None:
    found = gradient(loss, mask=[MASK[0], [0.0] * 4])
    good = found.isfinite().all() and (found[0, 1:3] != 0).all()
    require(good, f"a second row without tokens gives the gradients {found.tolist()}")


@case("loss", "old log-probs", "the ratio is not taken to the old log-probs")
def _(loss: Callable[..., Any]) -> None:
    found = gradient(loss, [[1.0, 1.1, 1.0, 1.0], [1.0] * 4])
    ratio = float(found[0, 1] / found[0, 2])
    require(
        math.isclose(ratio, 1.1, rel_tol=1e-3),
        f"at ratio 1.1 the gradient must be 1.1 times that at 1, not {ratio:.3g}",
    )


# -- masks -------------------------------------------------------------------------------------------------------------

DIALOGUE = [("system", 2), ("user", 3), ("assistant", 2), ("tool", 4), ("assistant", 1), ("user", 2), ("assistant", 3)]
OWN = [role == "assistant" for role, count in DIALOGUE for _ in range(count)]


@case("mask", "every token", "the mask is shorter or longer than the dialogue")
def _(mask: Callable[..., Any]) -> None:
    found = len(list(mask(DIALOGUE)))
    require(found == len(OWN), f"{len(OWN)} tokens have a mask of {found}")


@case("mask", "not inverted", "the policy is trained on what it read")
def _(mask: Callable[..., Any]) -> None:
    read = [x for x, own in zip(mask(DIALOGUE), OWN, strict=True) if not own]
    require(not any(read), "tokens of the system, the user or a tool are in the mask")


@case("mask", "every turn", "only the last turn of the policy is trained on")
def _(mask: Callable[..., Any]) -> None:
    found = [int(x) for x, own in zip(mask(DIALOGUE), OWN, strict=True) if own]
    require(all(found), f"the policy's six tokens have the mask {found}")


# -- the program -------------------------------------------------------------------------------------------------------


def faults(kind: str, function: Callable[..., Any]) -> dict[str, str]:
    faults_of = {}
    for each in CASES[kind]:
        try:
            each.check(function)
        except Wrong as wrong:
            faults_of[each.name] = str(wrong)
        except Exception as error:  # the function is somebody's own
            faults_of[each.name] = f"{type(error).__name__}: {error}"
    return faults_of


@program()
def main(arguments: list[str]) -> int:
    parser = options(__doc__)
    parser.add_argument("function", help="module:function, from the current folder or an installed package")
    parser.add_argument("--kind", choices=sorted(CASES), default="advantage")
    args = parser.parse_args(arguments)
    module, _, name = args.function.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{args.function}: {error}; give module:function, such as my_module:my_advantage") from error
    wrong = faults(args.kind, function)
    console = Terminal()
    for each in CASES[args.kind]:
        verdict = f"FAILS: {wrong[each.name]} ({each.fault})" if each.name in wrong else "passes"
        console.print(f"{each.name:24} {verdict}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(CASES[args.kind]) - len(wrong)} of {len(CASES[args.kind])} cases pass", highlight=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
