"""The verifier of household that compares with the demonstrated action (PivotRL, arXiv:2603.21383, App. A.2).

An action is accepted where it has the effect of the demonstrated one: it changes the same part of the state in the
same way and is answered with the same kind of observation. Both hold where the two are the same operation on things
that are alike, so that what differs is only what nobody can know or care about: into which of two places that may
hold a mug one looks first, which of two mugs one takes.

- Two objects are alike where they are of one type and equally clean, hot, cold, sliced and lit.
- Two receptacles are alike where they serve the task alike: both or neither are where the thing has to go, where it
  is to be treated, where it or the lamp may lie; both have a door or none, open or closed; and either neither was
  looked into, or what the task asks for was seen in both alike.

Whether the demonstrated action was a good one does not count. One that does nothing ("Nothing happens.") has no
effect to compare with: nothing is accepted in its place, itself included. The paper's candidates, too, leave out
calls that end in an error.
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

_NOTHING = frozenset({INVENTORY, LOOK, HELP})  # operations on no thing
_OBJECT = frozenset({USE, LOOK_AT})
_RECEPTACLE = frozenset({GO, OPEN, CLOSE, LOOK_INTO})

Kind = tuple[object, ...]
"""What alike things have in common."""


class Effect(NamedTuple):
    """What an action does, whichever of alike things it does it to."""

    operation: int
    things: tuple[Kind, ...]


def accepts(session: HouseholdSession, action: str, expert: str) -> bool:
    """Whether the action has the effect of the demonstrated one; ``session`` is not changed."""
    wanted = effect(session, expert)
    return wanted is not None and effect(session, action) == wanted


def effect(session: HouseholdSession, action: str) -> Effect | None:
    """Returns the effect of an action; None where it does nothing, or the episode is over."""
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
    if operation == SLICE:  # the knife has the receptacle's place
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
    """Returns where objects of these types may lie."""
    found = 0
    for o in bits(objects):
        found |= world.fits[o]
    return found
