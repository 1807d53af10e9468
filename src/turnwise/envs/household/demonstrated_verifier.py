"""The verifier ``demonstrated`` of ``env=household`` compares the policy's action with the expert's action.

Source: PivotRL, arXiv:2603.21383, App. A.2.

An action is accepted if it does the operation of the expert's action with objects and receptacles that are alike. The
two actions then differ only in details that do not matter or cannot be known, for example which of two mugs is taken,
or which of two places that may hold a mug is searched first.

- Two objects are alike if they have the same type and are equally clean, hot, cold, sliced and lit.
- Two receptacles (places that can hold objects) are alike if they agree in three respects. First, their role in the
  task: whether the target object has to be placed there, is cleaned, heated or cooled there, or may lie there, and
  whether the lamp may lie there. Second, whether they have a door, and whether the door is open. Third, what the policy
  has seen inside: the policy has looked into neither receptacle, or the target objects and lamps in both are alike.

The verifier does not ask whether the expert's action was good. If the expert's action does nothing ("Nothing
happens."), no action is accepted, not even the expert's action. The paper, too, does not train on expert turns whose
call ends in an error.
"""

from __future__ import annotations

from typing import NamedTuple

from turnwise.envs.household.session import HouseholdSession
from turnwise.envs.household.state import State
from turnwise.envs.household.world import (
    CLOSE,
    GO,
    HELP,
    INVENTORY,
    LOOK,
    LOOK_AT,
    LOOK_INTO,
    OPEN,
    SLICE,
    USE,
    Command,
    World,
    bits,
)

_NOTHING = frozenset({INVENTORY, LOOK, HELP})  # operations that need no object or receptacle
_OBJECT = frozenset({USE, LOOK_AT})
_RECEPTACLE = frozenset({GO, OPEN, CLOSE, LOOK_INTO})

Kind = tuple[object, ...]
"""The properties of an object or receptacle. Two objects, or two receptacles, with equal properties are alike."""


class Effect(NamedTuple):
    """The effect of an action: its operation, and the properties of the objects and receptacles in the action."""

    operation: int
    things: tuple[Kind, ...]


def accepts(session: HouseholdSession, action: str, expert: str) -> bool:
    """Returns whether ``action`` has the effect of the expert's action ``expert``. ``session`` is not changed."""
    wanted = effect(session, expert)
    return wanted is not None and effect(session, action) == wanted


def effect(session: HouseholdSession, action: str) -> Effect | None:
    """Returns the effect of an action; None if the action is not possible now or the episode is over."""
    world, state = session.world, session.state
    command = world.commands.get(action.strip())
    if session.done or command is None or not state.admits(world, command):
        return None
    return Effect(command[0], _things(world, state, command))


def _things(world: World, state: State, command: Command) -> tuple[Kind, ...]:
    operation, o, r = command
    if operation in _NOTHING:
        return ()
    if operation in _OBJECT:
        return (_object(world, state, o),)
    if operation in _RECEPTACLE:
        return (_receptacle(world, state, r),)
    if operation == SLICE:  # for this operation, the knife is stored in place of the receptacle
        return (_object(world, state, o), _object(world, state, r))
    return (_object(world, state, o), _receptacle(world, state, r))


def _object(world: World, state: State, o: int) -> Kind:
    conditions = (state.clean, state.hot, state.cool, state.sliced, state.lit)
    return world.object_types[o], *(bool(mask >> o & 1) for mask in conditions)


def _receptacle(world: World, state: State, r: int) -> Kind:
    serves = (world.destinations, world.treatment[1], _places(world, world.targets), _places(world, world.toggles))
    asked = state.contents[r] & (world.targets | world.toggles)
    inside = tuple(sorted(_object(world, state, o) for o in bits(asked))) if state.seen >> r & 1 else None
    return *(bool(mask >> r & 1) for mask in (*serves, world.openable, state.opened)), inside


def _places(world: World, objects: int) -> int:
    """Returns a bit mask of the receptacles that can hold at least one of the objects in the bit mask ``objects``."""
    found = 0
    for o in bits(objects):
        found |= world.fits[o]
    return found
