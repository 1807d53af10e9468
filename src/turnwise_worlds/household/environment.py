"""``env=household``: ALFWorld's texts and rules in generated rooms: its experts and its two verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Only the standard library and PyYAML: the example of env=agent imports this in a sandbox.
from turnwise.env import Verifier, check_horizon
from turnwise.types import Task
from turnwise_worlds.household.rooms import LAMP_PLACES, Command, HouseholdRoom, Op, bits, make_task, weight
from turnwise_worlds.household.state import NOWHERE, HouseholdSession, State, distance, full_aim, known_aim
from turnwise_worlds.scripted_experts import Chances, Expert, LastTasks
from turnwise_worlds.text_games import GameEnv, Prompt

_PLANNED = frozenset({Op.OPEN, Op.TAKE, Op.MOVE, Op.CLEAN, Op.HEAT, Op.COOL, Op.USE})


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """The probabilities of the clumsy expert's mistakes in a turn. A mistake is made only where it is possible."""

    revisit: float = 0.06  # walks to a receptacle into which the expert has already looked
    idle: float = 0.06  # examines something, looks around, or checks the inventory
    leave: float = 0.08  # walks away from the object or receptacle that should be taken or opened
    wrong: float = 0.08  # takes an object that is not needed; the expert puts the object down later
    premature: float = 0.25  # goes to the destination before the target was cleaned, heated or cooled
    inadmissible: float = 0.06  # gives a command that has no effect here


class HouseholdExpert(Expert[HouseholdSession]):
    """An expert that acts almost optimally, given its observations. The seed decides the order of its search."""

    carried = False  # whether the mistake ``premature`` was made, which happens at most once

    def __init__(self, session: HouseholdSession, seed: int | str) -> None:
        super().__init__(session, seed)
        # The expert searches the receptacle with the largest key first. These keys draw receptacles without
        # replacement, with probabilities in proportion to the weights.
        self.order = [self.rng.random() ** (1 / weight(name)) for name in session.world.receptacles]

    def best(self, session: HouseholdSession) -> str:
        return session.world.texts[self.command(session)]

    def act(self, session: HouseholdSession) -> str:
        planned = self.command(session)
        return self.mistake(session, planned) or session.world.texts[planned]

    def command(self, session: HouseholdSession) -> Command:
        return self.pursue(session) or self.search(session)

    def pursue(self, session: HouseholdSession) -> Command | None:
        """Returns the next command of a shortest plan with what the expert knows; None if it has to search."""
        world, state = session.world, session.state
        aim = known_aim(world, state)
        if aim is None:
            return None
        now = distance(world, state, aim)
        best = None
        for command in options(session):
            after = state.fork()
            after.apply(world, command)
            if distance(world, after, aim) < now:
                best = command
                if command[0] != Op.GO:
                    break
        return best  # if several walks shorten the plan, this is the last one in the list of options

    def search(self, session: HouseholdSession) -> Command:
        """Puts down an unneeded object, opens the receptacle before which the expert stands, or walks to a likely one."""
        world, state = session.world, session.state
        held, at = state.held, state.at
        aimless = held != NOWHERE and not world.targets >> held & 1
        if aimless and at != NOWHERE and world.fits[held] >> at & 1 and state.accessible(world, at):
            return (Op.MOVE, held, at)
        unseen = [r for r in range(len(world.receptacles)) if not state.seen >> r & 1]
        if world.looking and held != NOWHERE and world.targets >> held & 1:  # the lamp is left to find
            candidates = [r for r in unseen if world.receptacle_types[r] in LAMP_PLACES] or unseen
        else:
            homes = world.fits[bits(world.targets)[0]]
            possible = [r for r in unseen if homes >> r & 1]
            candidates = [r for r in possible if not world.destinations >> r & 1] or possible or unseen
        if at in candidates:
            return (Op.OPEN, 0, at)
        return (Op.GO, 0, max(candidates, key=lambda r: self.order[r]))

    def _choose(self, session: HouseholdSession, commands: list[Command]) -> str | None:
        return session.world.texts[self.rng.choice(commands)] if commands else None

    def _revisit(self, session: HouseholdSession, planned: Command) -> str | None:
        known = [(Op.GO, 0, r) for r in bits(session.state.seen) if r != session.state.at]
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
        if planned[0] not in (Op.TAKE, Op.OPEN):
            return None
        places = range(len(session.world.receptacles))
        return self._choose(session, [(Op.GO, 0, r) for r in places if r != session.state.at])

    def _wrong(self, session: HouseholdSession, planned: Command) -> str | None:
        world, state = session.world, session.state
        if state.held != NOWHERE or state.at == NOWHERE or not state.accessible(world, state.at):
            return None
        things = bits(state.contents[state.at] & ~world.targets & ~world.lamps)
        return self._choose(session, [(Op.TAKE, o, state.at) for o in things if world.fits[o] >> state.at & 1])

    def _premature(self, session: HouseholdSession, planned: Command) -> str | None:
        world, state = session.world, session.state
        held = state.held
        untreated = held != NOWHERE and world.targets >> held & 1 and not state.treated(world) >> held & 1
        if not untreated or self.carried:
            return None
        self.carried = True
        return self._choose(session, [(Op.GO, 0, r) for r in bits(world.destinations) if r != state.at])

    def _inadmissible(self, session: HouseholdSession, planned: Command) -> str | None:
        """Returns a command with known names whose precondition fails, such as a closed door or full hands."""
        world, state = session.world, session.state
        known = state.known()
        places = [state.at] if state.at != NOWHERE else range(len(world.receptacles))
        choices = [
            command
            for command in world.commands.values()
            if command[0] in _PLANNED
            and (command[0] == Op.OPEN or known >> command[1] & 1)
            and (command[0] == Op.USE or command[2] in places)
            and not state.admits(world, command)
        ]
        return self._choose(session, choices)


def options(session: HouseholdSession) -> list[Command]:
    world, state = session.world, session.state
    commands = [c for c in world.nearby[state.at] if c[0] in _PLANNED and state.admits(world, c)]
    return commands + [(Op.GO, 0, r) for r in range(len(world.receptacles)) if r != state.at]


def makes_progress(session: HouseholdSession, action: str) -> bool:
    world, state = session.world, session.state
    command = world.commands.get(action.strip())
    if session.done or command is None or not state.admits(world, command):
        return False
    aim = known_aim(world, state)
    if aim is None:
        if _gains_information(world, state, command):
            return True
        if command[0] not in (Op.MOVE, Op.USE):
            return False
        aim = full_aim(world)
    after = state.fork()
    after.apply(world, command)
    return distance(world, after, aim) < distance(world, state, aim)


def _gains_information(world: HouseholdRoom, state: State, command: Command) -> bool:
    """Whether the command shows the inside of a new receptacle, or walks to a new one that is closed, unless the policy
    stands before another new receptacle, which it should open first.
    """
    op, _, r = command
    if op not in (Op.GO, Op.OPEN) or state.seen >> r & 1:
        return False
    return op == Op.OPEN or state.accessible(world, r) or state.at == NOWHERE or bool(state.seen >> state.at & 1)


Kind = tuple[object, ...]
"""The properties of an object or receptacle. Two objects, or two receptacles, with equal properties are alike."""


def effect(session: HouseholdSession, action: str) -> Kind | None:
    """Returns the operation and the kinds of the things on which it is done; None if the action has no effect."""
    world, state = session.world, session.state
    command = world.commands.get(action.strip())
    if session.done or command is None or not state.admits(world, command):
        return None
    op, o, r = command
    things: list[Kind] = []
    if op in (Op.TAKE, Op.MOVE, Op.CLEAN, Op.HEAT, Op.COOL, Op.USE, Op.SLICE, Op.LOOK_AT):
        things.append(_object(world, state, o))
    if op == Op.SLICE:
        things.append(_object(world, state, r))  # the knife
    elif op in (Op.GO, Op.OPEN, Op.CLOSE, Op.TAKE, Op.MOVE, Op.CLEAN, Op.HEAT, Op.COOL, Op.LOOK_INTO):
        things.append(_receptacle(world, state, r))
    return op, *things


def _object(world: HouseholdRoom, state: State, o: int) -> Kind:
    conditions = (state.clean, state.hot, state.cool, state.sliced, state.lit)
    return world.object_types[o], *(bool(mask >> o & 1) for mask in conditions)


def _receptacle(world: HouseholdRoom, state: State, r: int) -> Kind:
    """Its roles in the task, its door, and the objects inside that the task needs, if the agent has looked into it."""
    roles = [world.destinations, world.treatment[1], world.openable, state.opened]
    holds = [any(world.fits[o] >> r & 1 for o in bits(needed)) for needed in (world.targets, world.toggles)]
    needed = bits(state.contents[r] & (world.targets | world.toggles))
    inside = tuple(sorted(_object(world, state, o) for o in needed)) if state.seen >> r & 1 else None
    return *(bool(mask >> r & 1) for mask in roles), *holds, inside


def _world(task: Task) -> HouseholdRoom:  # a function with a name, because processes send environments to each other
    return HouseholdRoom(task.data)


@dataclass(eq=False)
class HouseholdEnv(GameEnv[HouseholdSession]):
    """Household tasks of six kinds, played in text (conf/env/household.yaml explains the arguments)."""

    name = "household"
    expert = HouseholdExpert

    horizon: int = 30
    mistakes: Mistakes = Mistakes()
    worlds: int = 256
    verifier: Verifier = "oracle"
    prompt: Prompt | None = None

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        self._worlds = LastTasks(_world, self.worlds)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [make_task(split, seed, index) for index in range(count)]

    def begin(self, task: Task) -> HouseholdSession:
        return HouseholdSession(task, self._worlds(task), self.horizon)

    def allows(self, session: HouseholdSession, command: str, expert: str) -> bool:
        if self.verifier == "oracle":
            return makes_progress(session, command)
        wanted = effect(session, expert)
        return wanted is not None and effect(session, command) == wanted
