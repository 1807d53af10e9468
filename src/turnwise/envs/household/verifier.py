"""The functional verifier ``oracle`` of ``env=household`` (PivotRL, arXiv:2603.21383).

It is not enough that an action does no harm: when harmless actions were rewarded, walking back and forth was as good as
searching. So every accepted action makes progress in one of two ways:

- If the observations so far suffice to pursue a part of the goal, the action must shorten the shortest plan that uses
  only these observations. No action can shorten this plan by more than one step.
- If the policy has to search first, there are three kinds of accepted actions. The policy looks into a receptacle for
  the first time. Or it walks to a closed receptacle that it has not looked into, unless it already stands before
  another receptacle that it has not looked into. Or it puts down an object or switches on the lamp, if this action
  shortens the shortest plan with full knowledge of the room.

The expert's action has no influence on the decision, so a clumsy expert's mistake changes nothing.
"""

from __future__ import annotations

from turnwise.envs.household.planner import distance, full_aim, known_aim
from turnwise.envs.household.session import HouseholdSession
from turnwise.envs.household.state import NOWHERE, State
from turnwise.envs.household.world import GO, MOVE, OPEN, USE, Command, World


def accepts(session: HouseholdSession, action: str) -> bool:
    """Returns whether the policy's action makes progress, and is therefore accepted. ``session`` is not changed."""
    world, state = session.world, session.state
    command = world.commands.get(action.strip())
    if session.done or command is None or not state.admits(world, command):
        return False
    aim = known_aim(world, state)
    if aim is None:
        if _gains_information(world, state, command):
            return True
        if command[0] not in (MOVE, USE):
            return False
        aim = full_aim(world)
    after = state.copy()
    after.apply(world, command)
    return distance(world, after, aim) < distance(world, state, aim)


def _gains_information(world: World, state: State, command: Command) -> bool:
    """Returns whether the command shows the inside of a new receptacle, or walks to a new receptacle that is closed.

    A receptacle is new if the policy has not looked into it yet. A walk to a closed receptacle does not count if the
    policy stands before another new receptacle, which the policy should open first.
    """
    op, _, r = command
    if op not in (GO, OPEN) or state.seen >> r & 1:
        return False
    return op == OPEN or state.accessible(world, r) or state.at == NOWHERE or bool(state.seen >> state.at & 1)
