"""The functional verifier of household: it accepts actions that are as good as an expert's (PivotRL, arXiv:2603.21383).

It is not enough that an action does no harm. When such actions were rewarded, walking back and forth was as good as
searching. So every accepted action makes progress in one of two ways, and no action is accepted again and again:

- If a part of the goal can be pursued with what was observed, the action must shorten the shortest plan over what was
  observed by one step, which is the most that any action can do.
- If the agent has to search first, there are three kinds of accepted actions: it looks into a receptacle for the first
  time; it walks to such a receptacle that is closed, unless it already stands before an unopened one; or it takes a
  step of the exact remaining plan other than a walk or a take, that is, it puts down what is in the way or switches on
  the lamp.

The expert's action has no influence. So a mistake of a clumsy expert does not lower the standard, and the accepted
actions in a state do not depend on who demonstrated there. Once everything that matters was observed, the plan over
what was observed is the exact remaining plan.
"""

from __future__ import annotations

from turnwise.envs.household.planner import distance, full_aim, known_aim
from turnwise.envs.household.session import HouseholdSession
from turnwise.envs.household.world import MOVE, USE


def accepts(session: HouseholdSession, action: str) -> bool:
    """Returns whether the action makes progress. An inadmissible action never does. ``session`` is not changed."""
    world, state = session.world, session.state
    command = world.commands.get(action.strip())
    if session.done or command is None or not state.admits(world, command):
        return False
    aim = known_aim(world, state)
    if aim is None:
        if session.gains_information(action):
            return True
        if command[0] not in (MOVE, USE):
            return False
        aim = full_aim(world)
    after = state.copy()
    after.apply(world, command)
    return distance(world, after, aim) < distance(world, state, aim)
