"""The interface of a reward, and the outcome of an episode as the reward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from turnwise.data.toolcalls import Format, ToolCallError, parser_of
from turnwise.errors import InputError
from turnwise.types import Rewards, RolloutTree, State, ToolCall


class Reward(Protocol):
    """A function that returns, for a tree and by name, lists with one number per leaf. One of the names is ``total``.

    Leaves in ``tree.invalid`` (whose environment failed) get NaN. A bounded reward has an attribute ``most``: the
    greatest possible ``total`` of a rollout.
    """

    def __call__(self, tree: RolloutTree) -> Rewards: ...


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
