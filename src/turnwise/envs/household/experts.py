"""The scripted experts of ``env=household``, which know only what the observations of the episode have shown.

An expert follows a shortest plan if it knows enough to make a plan. Otherwise the expert searches likely places in a
random order.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.household.catalog import LAMP_PLACES
from turnwise.envs.household.planner import distance, known_aim
from turnwise.envs.household.rooms import weight
from turnwise.envs.household.session import HouseholdSession
from turnwise.envs.household.state import NOWHERE
from turnwise.envs.household.world import CLEAN, COOL, GO, HEAT, MOVE, OPEN, TAKE, USE, Command, bits

_PLANNED = frozenset({OPEN, TAKE, MOVE, CLEAN, HEAT, COOL, USE})


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """The probabilities of the clumsy expert's mistakes in a turn. A mistake is made only where it is possible."""

    revisit: float = 0.06  # walks to a receptacle into which the expert has already looked
    idle: float = 0.06  # examines something, looks around, or checks the inventory
    leave: float = 0.08  # walks away from the object or receptacle that should be taken or opened
    wrong: float = 0.08  # takes an object that is not needed; the expert puts the object down later
    premature: float = 0.25  # goes to the destination before the target was cleaned, heated or cooled
    inadmissible: float = 0.06  # gives a command that has no effect here


class GoodExpert(Expert[HouseholdSession]):
    """An expert that acts almost optimally, given its observations. The seed decides the order of its search."""

    def __init__(self, session: HouseholdSession, seed: int | str) -> None:
        super().__init__(session, seed)
        # The expert searches the receptacle with the largest key first. These keys draw receptacles without
        # replacement, with probabilities in proportion to the weights.
        self.order = [self.rng.random() ** (1 / weight(name)) for name in session.world.receptacles]

    def best(self, session: HouseholdSession) -> str:
        return session.world.texts[self.command(session)]

    def command(self, session: HouseholdSession) -> Command:
        """Returns the command that the good expert gives now."""
        return self.pursue(session) or self.search(session)

    def pursue(self, session: HouseholdSession) -> Command | None:
        """Returns the next command of a shortest plan with the expert's knowledge; None if the expert has to search."""
        world, state = session.world, session.state
        aim = known_aim(world, state)
        if aim is None:
            return None
        now = distance(world, state, aim)
        best = None
        for command in options(session):
            after = state.copy()
            after.apply(world, command)
            if distance(world, after, aim) < now:
                best = command
                if command[0] != GO:
                    break
        return best  # if several walks shorten the plan, this is the last one in the list of options

    def search(self, session: HouseholdSession) -> Command:
        """Returns the expert's next command while it searches for a target object or the lamp.

        The expert puts down an unneeded object, or opens the closed receptacle before which it stands, or walks to a
        likely receptacle that it has not looked into yet.
        """
        world, state = session.world, session.state
        held, at = state.held, state.at
        aimless = held != NOWHERE and not world.targets >> held & 1
        if aimless and at != NOWHERE and world.fits[held] >> at & 1 and state.accessible(world, at):
            return (MOVE, held, at)
        unseen = [r for r in range(len(world.receptacles)) if not state.seen >> r & 1]
        found = self.seeks_lamp(session)
        likely = [
            r
            for r in unseen
            if (
                world.receptacle_types[r] in LAMP_PLACES
                if found
                else self.can_hold_target(session, r) and not world.destinations >> r & 1
            )
        ]
        candidates = likely or [r for r in unseen if not found and self.can_hold_target(session, r)] or unseen
        if at in candidates:
            return (OPEN, 0, at)
        return (GO, 0, max(candidates, key=lambda r: self.order[r]))

    @staticmethod
    def can_hold_target(session: HouseholdSession, r: int) -> bool:
        """Returns whether a target object could lie in receptacle ``r``."""
        targets = bits(session.world.targets)
        return bool(targets) and bool(session.world.fits[targets[0]] >> r & 1)

    @staticmethod
    def seeks_lamp(session: HouseholdSession) -> bool:
        """Returns whether the expert already holds the object that it has to look at, and so seeks the lamp."""
        held = session.state.held
        return session.world.looking and held != NOWHERE and bool(session.world.targets >> held & 1)


class ClumsyExpert(Clumsy[HouseholdSession], GoodExpert):
    """An expert that acts like the good expert, but sometimes makes one of the :class:`Mistakes` and then recovers."""

    carried = False  # whether the mistake ``premature`` was made, which happens at most once

    def act(self, session: HouseholdSession) -> str:
        planned = self.command(session)
        return self.mistake(session, planned) or session.world.texts[planned]

    def _choose(self, session: HouseholdSession, commands: list[Command]) -> str | None:
        return session.world.texts[self.rng.choice(commands)] if commands else None

    def _revisit(self, session: HouseholdSession, planned: Command) -> str | None:
        known = [(GO, 0, r) for r in bits(session.state.seen) if r != session.state.at]
        return self._choose(session, [command for command in known if command != planned])

    def _idle(self, session: HouseholdSession, planned: Command) -> str | None:
        world, state = session.world, session.state
        choices = ["look", "inventory"]
        if state.at != NOWHERE:
            choices += [f"examine {world.receptacles[state.at]}"] * 2
        if state.held != NOWHERE:
            choices += [f"examine {world.objects[state.held]}"] * 2
        return self.rng.choice(choices)

    def _leave(self, session: HouseholdSession, planned: Command) -> str | None:
        if planned[0] not in (TAKE, OPEN):
            return None
        places = range(len(session.world.receptacles))
        return self._choose(session, [(GO, 0, r) for r in places if r != session.state.at])

    def _wrong(self, session: HouseholdSession, planned: Command) -> str | None:
        world, state = session.world, session.state
        if state.held != NOWHERE or state.at == NOWHERE or not state.accessible(world, state.at):
            return None
        things = bits(state.contents[state.at] & ~world.targets & ~world.lamps)
        return self._choose(session, [(TAKE, o, state.at) for o in things if world.fits[o] >> state.at & 1])

    def _premature(self, session: HouseholdSession, planned: Command) -> str | None:
        world, state = session.world, session.state
        held = state.held
        untreated = held != NOWHERE and world.targets >> held & 1 and not state.treated(world) >> held & 1
        if not untreated or self.carried:
            return None
        self.carried = True
        return self._choose(session, [(GO, 0, r) for r in bits(world.destinations) if r != state.at])

    def _inadmissible(self, session: HouseholdSession, planned: Command) -> str | None:
        """Returns a plausible command that is not possible now.

        The command uses only names that the expert has seen, but its precondition fails: for example, a door is closed
        or the expert's hands are full.
        """
        world, state = session.world, session.state
        known = state.known()
        places = [state.at] if state.at != NOWHERE else range(len(world.receptacles))
        choices = [
            command
            for command in world.commands.values()
            if command[0] in _PLANNED
            and (command[0] == OPEN or known >> command[1] & 1)
            and (command[0] == USE or command[2] in places)
            and not state.admits(world, command)
        ]
        return self._choose(session, choices)


def options(session: HouseholdSession) -> list[Command]:
    """Returns the commands that a plan may use and that are possible now. Walks (``GO``) are last in the list."""
    world, state = session.world, session.state
    commands = [c for c in world.nearby[state.at] if c[0] in _PLANNED and state.admits(world, c)]
    return commands + [(GO, 0, r) for r in range(len(world.receptacles)) if r != state.at]
