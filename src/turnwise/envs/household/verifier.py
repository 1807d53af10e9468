"""The functional verifier of household: which actions are as good as an expert's (PivotRL, arXiv:2603.21383).

Doing no harm is not enough: where that was paid, walking back and forth was as good as searching. So every accepted
action makes progress in one of two ways, and no accepted action can be repeated for ever:

- Something of the goal can be pursued with what was observed: the action shortens the shortest plan over what was
  observed by one step, as much as any action can.
- A search is due: the action looks into a receptacle that was not looked into, or walks up to such a closed one (not
  from another one left unopened), or is a step of the exact remaining plan other than a walk or a take: putting down
  what is in the way, or switching on the lamp.

The expert's action does not count: a mistake of a clumsy expert cannot lower the bar, and the acceptable set of a state
is the same whoever demonstrated there. Once everything that matters was observed, the plan over what was observed is
the exact remaining plan.
"""

from __future__ import annotations

from turnwise.envs.household.planner import distance, full_aim, known_aim
from turnwise.envs.household.session import HouseholdSession
from turnwise.envs.household.world import MOVE, USE


def accepts(session: HouseholdSession, action: str) -> bool:
    """Whether the action makes progress. An inadmissible one never does; ``session`` is not changed."""
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
