"""The interface of a reward, the outcome of an episode as the reward, and tool calls compared with the demonstrated
ones.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from turnwise.data.match_calls import match_calls, match_exactly
from turnwise.data.toolcalls import Format, ToolCallError, parser_of
from turnwise.errors import InputError
from turnwise.types import Rewards, RolloutTree, State, ToolCall


class Reward(Protocol):
    """A function that returns, for a tree and by name, lists with one number per leaf. One of the names is ``total``.

    Leaves in ``tree.invalid`` (whose environment failed) get NaN. A bounded reward has an attribute ``most``: the
    greatest possible ``total`` of a rollout.
    """

    def __call__(self, tree: RolloutTree) -> Rewards: ...


def rewards_of(reward: Reward, tree: RolloutTree) -> Rewards:
    """Returns the rewards of a tree's leaves. An InputError says if ``reward`` returned something of another form."""
    rewards: Any = reward(tree)
    with suppress(AttributeError, TypeError):
        if "total" in rewards and {len(values) for values in rewards.values()} == {len(tree.leaves())}:
            return rewards  # type: ignore[no-any-return]
    raise InputError(
        f"reward: {type(reward).__name__} must return a dictionary with a list 'total', whose lists have one number for "
        f"each of the {len(tree.leaves())} leaves of the tree (docs/extending.md), got {rewards!r:.200}"
    )


def recorded(tree: RolloutTree, key: str, remedy: str) -> list[float]:
    """Returns ``info[key]`` of every leaf as a number, or NaN for a leaf whose environment failed. Raises a ValueError
    that ends with ``remedy`` if another leaf has no ``info[key]``.
    """
    values = []
    for leaf in tree.leaves():
        if leaf in tree.invalid:
            values.append(math.nan)
        elif key not in tree.turns[leaf].info:
            raise ValueError(f"state {tree.state.id!r}: the info of turn {leaf} has no key {key!r}. {remedy}")
        else:
            values.append(float(tree.turns[leaf].info[key]))
    return values


def single_actions(tree: RolloutTree, reward: str) -> list[int]:
    """The leaves; raises a ValueError if a rollout has more than one turn, because ``reward`` rates single actions."""
    deep = next((i for i, turn in enumerate(tree.turns) if turn.parent >= 0), None)
    if deep is not None:
        raise ValueError(
            f"state {tree.state.id!r}: a rollout has more than one turn (turn {deep} follows turn "
            f"{tree.turns[deep].parent}), but reward={reward} compares a single action with the demonstrated action. "
            "Set rollout.turns=1 and states=expert_turns or states=pivots, or set reward=outcome"
        )
    return tree.leaves()


def recorded_locally(tree: RolloutTree, key: str, reward: str) -> Rewards:
    """The verdict ``info[key]`` of rollouts with one turn each, also named ``total``."""
    single_actions(tree, reward)
    remedy = f"reward={reward} needs states with a demonstrated action: set states=expert_turns or states=pivots"
    values = recorded(tree, key, remedy)
    return {key: values, "total": values}


def demonstrated_calls(state: State, form: Format | None) -> tuple[ToolCall, ...]:
    if state.expert is None:
        raise ValueError(f"state {state.id!r} has no demonstrated calls to compare with; set states=expert_turns")
    try:
        return parser_of(form)(state.expert).calls
    except ToolCallError as error:
        raise InputError(
            f"{state.id}: the demonstrated action is not in the format {form} ({error}): set reward.format to the "
            "format of the demonstrated calls, or correct the demonstrations"
        ) from error


def made_calls(text: str, form: Format | None) -> tuple[ToolCall, ...] | None:
    """None if the action is not in the format ``form``."""
    try:
        return parser_of(form)(text).calls
    except ToolCallError:
        return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Returns the reward ``outcome`` of each leaf, which is also its ``total``.

    With ``of=won`` the outcome is 1 if the environment reported the episode as won, else 0. With ``of=return`` the
    outcome is the sum of the environment's rewards along the path.
    """

    of: Literal["won", "return"] = "won"

    @property
    def most(self) -> float | None:
        return 1.0 if self.of == "won" else None

    def __call__(self, tree: RolloutTree) -> Rewards:
        if self.of == "won":
            values = recorded(
                tree, "won", "The environment must report this key with every step. reward.of=return does not need it"
            )
        else:
            values = [
                math.nan if leaf in tree.invalid else math.fsum(tree.turns[i].reward for i in tree.path(leaf))
                for leaf in tree.leaves()
            ]
        return {"outcome": values, "total": values}


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Returns three rewards, each 0 or 1, that compare an action's tool calls with the demonstrated calls (our
    rules for the functional equivalence of PivotRL, arXiv:2603.21383, which defines them for other domains).

    ``format`` is 1 if the action can be parsed and was not cut off. ``functional`` is 1 if the calls can be matched one
    to one with equivalent demonstrated calls (:func:`turnwise.data.match_calls.match_calls`). ``strict`` is 1 if the
    calls are identical to the demonstrated calls and have the same order. An action that cannot be parsed or was cut
    off gets 0 for all three. If no call was demonstrated, only an action without calls gets ``functional`` and
    ``strict`` 1.
    """

    format: Format | None = "hermes"  # of calls; a run puts that of the environment or the policy in the place of None
    exact: bool = False  # whether ``total`` is ``strict``, not ``functional``
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
                    good, same = float(match_calls(made, expected)), float(match_exactly(made, expected))
            form.append(readable)
            functional.append(good)
            strict.append(same)
        return {
            "format": form,
            "functional": functional,
            "strict": strict,
            "total": strict if self.exact else functional,
        }
