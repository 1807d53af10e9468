"""``env=household``: ALFWorld's texts and rules in generated rooms: its experts and its two verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# no library is imported here: the example of env=agent plays this environment in a sandbox without any
from turnwise.env import Verifier, check_horizon
from turnwise.types import Task
from turnwise_worlds.household.state import NOWHERE, HouseholdSession, State, distance, full_aim, known_aim
from turnwise_worlds.household.world import LAMP_PLACES, Command, Op, World, bits, make_task, weight
from turnwise_worlds.react import GameEnv, Prompt
from turnwise_worlds.scripted import Chances, Clumsy, Expert, LastTasks

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
            after = state.copy()
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
            return (Op.OPEN, 0, at)
        return (Op.GO, 0, max(candidates, key=lambda r: self.order[r]))

    @staticmethod
    def can_hold_target(session: HouseholdSession, r: int) -> bool:
        targets = bits(session.world.targets)
        return bool(targets) and bool(session.world.fits[targets[0]] >> r & 1)

    @staticmethod
    def seeks_lamp(session: HouseholdSession) -> bool:
        held = session.state.held
        return session.world.looking and held != NOWHERE and bool(session.world.targets >> held & 1)


class ClumsyExpert(Clumsy[HouseholdSession], GoodExpert):
    carried = False  # whether the mistake ``premature`` was made, which happens at most once

    def act(self, session: HouseholdSession) -> str:
        planned = self.command(session)
        return self.mistake(session, planned) or session.world.texts[planned]

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
    after = state.copy()
    after.apply(world, command)
    return distance(world, after, aim) < distance(world, state, aim)


def _gains_information(world: World, state: State, command: Command) -> bool:
    """Whether the command shows the inside of a new receptacle, or walks to a new one that is closed, unless the policy
    stands before another new receptacle, which it should open first.
    """
    op, _, r = command
    if op not in (Op.GO, Op.OPEN) or state.seen >> r & 1:
        return False
    return op == Op.OPEN or state.accessible(world, r) or state.at == NOWHERE or bool(state.seen >> state.at & 1)


_NOTHING = frozenset({Op.INVENTORY, Op.LOOK, Op.HELP})  # operations that need no object or receptacle
_OBJECT = frozenset({Op.USE, Op.LOOK_AT})
_RECEPTACLE = frozenset({Op.GO, Op.OPEN, Op.CLOSE, Op.LOOK_INTO})

Kind = tuple[object, ...]
"""The properties of an object or receptacle. Two objects, or two receptacles, with equal properties are alike."""


class Effect(NamedTuple):
    operation: int
    things: tuple[Kind, ...]


def has_effect_of(session: HouseholdSession, action: str, expert: str) -> bool:
    wanted = effect(session, expert)
    return wanted is not None and effect(session, action) == wanted


def effect(session: HouseholdSession, action: str) -> Effect | None:
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
    if operation == Op.SLICE:  # for this operation, the knife is stored in place of the receptacle
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
    found = 0
    for o in bits(objects):
        found |= world.fits[o]
    return found


class HouseholdEnv(GameEnv[HouseholdSession]):
    """Household tasks of six kinds, played in text (conf/env/household.yaml explains the arguments)."""

    name = "household"
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self,
        horizon: int = 30,
        mistakes: Mistakes | None = None,
        worlds: int = 256,
        verifier: Verifier = "oracle",
        prompt: Prompt | None = None,
    ) -> None:
        self.horizon, self.mistakes = check_horizon(horizon), mistakes or Mistakes()
        self.verifier, self.prompt = verifier, prompt
        self._worlds = LastTasks(_world, worlds)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [make_task(split, seed, index) for index in range(count)]

    def begin(self, task: Task) -> HouseholdSession:
        return HouseholdSession(task, self._worlds(task), self.horizon)

    def replay(self, task: Task, actions: Sequence[str]) -> HouseholdSession:
        session = self.reset(task)
        for action in actions:
            if session.done:
                break
            session.step(action)
        return session

    def allows(self, session: HouseholdSession, command: str, expert: str) -> bool:
        if self.verifier == "oracle":
            return makes_progress(session, command)
        return has_effect_of(session, command, expert)


def _world(task: Task) -> World:
    try:
        return World(task.data)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"task {task.id}: its data is not a task of env=household ({error!r})") from error
