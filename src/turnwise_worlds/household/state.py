"""The state of a household episode, shortest plans from it, and the episode itself."""

from __future__ import annotations

import copy
from typing import NamedTuple

from turnwise.env import Step, check_open
from turnwise.types import Task
from turnwise_worlds.household.world import HELP_TEXT, MIDDLE, NOTHING, Command, Op, World, bits
from turnwise_worlds.react import GameSession

NOWHERE = -1


class State:
    """Everything in a household episode that an action can change.

    In a bit mask, bit i stands for receptacle or object number i of ``World``. ``seen`` is the mask of the receptacles
    into which the agent has looked. Only the agent moves objects, so it still knows the content of these receptacles.
    """

    __slots__ = ("at", "clean", "contents", "cool", "held", "hot", "lit", "opened", "seen", "sliced")

    def __init__(self, contents: list[int]) -> None:
        self.at = NOWHERE
        self.held = NOWHERE
        self.contents = contents  # receptacle -> mask of the objects in it
        self.opened = self.seen = 0
        self.clean = self.hot = self.cool = self.sliced = self.lit = 0

    def copy(self) -> State:
        twin = State.__new__(State)
        twin.at = self.at
        twin.held = self.held
        twin.contents = self.contents[:]
        twin.opened = self.opened
        twin.seen = self.seen
        twin.clean = self.clean
        twin.hot = self.hot
        twin.cool = self.cool
        twin.sliced = self.sliced
        twin.lit = self.lit
        return twin

    def key(self) -> tuple[int, ...]:
        conditions = (self.clean, self.hot, self.cool, self.sliced, self.lit)
        return (self.at, self.held, self.opened, self.seen, *conditions, *self.contents)

    def known(self) -> int:
        known = 0 if self.held == NOWHERE else 1 << self.held
        for r in bits(self.seen):
            known |= self.contents[r]
        return known

    def accessible(self, world: World, r: int) -> bool:
        return not (world.openable & ~self.opened) >> r & 1

    def admits(self, world: World, command: Command) -> bool:
        op, o, r = command
        at = self.at
        if op == Op.GO:
            return at != r
        if op >= Op.INVENTORY:
            return True
        if op == Op.LOOK_AT:
            return self.held == o  # as in the ALFWorld engine, an object can be examined only while it is held
        if op == Op.USE:
            return at != NOWHERE and bool(self.contents[at] >> o & 1)
        if op == Op.SLICE:
            return self.held == r and at != NOWHERE and bool(self.contents[at] >> o & 1)
        if at != r:
            return False
        if op == Op.TAKE:
            return self.held == NOWHERE and bool(self.contents[r] >> o & 1) and self.accessible(world, r)
        if op == Op.MOVE:
            return self.held == o and self.accessible(world, r)
        if op == Op.OPEN:
            return not self.opened >> r & 1
        if op == Op.CLOSE:
            return bool(self.opened >> r & 1)
        return op == Op.LOOK_INTO or self.held == o  # the remaining operations are cleaning, heating and cooling

    def apply(self, world: World, command: Command) -> None:
        op, o, r = command
        if op == Op.GO:
            self.at = r
            if self.accessible(world, r):
                self.seen |= 1 << r
        elif op == Op.OPEN:
            self.opened |= 1 << r
            self.seen |= 1 << r
        elif op == Op.CLOSE:
            self.opened &= ~(1 << r)
        elif op == Op.TAKE:
            self.contents[r] &= ~(1 << o)
            self.held = o
        elif op == Op.MOVE:
            self.contents[r] |= 1 << o
            self.held = NOWHERE
        elif op == Op.CLEAN:
            self.clean |= 1 << o
        elif op == Op.HEAT:
            self.hot |= 1 << o
            self.cool &= ~(1 << o)
        elif op == Op.COOL:
            self.cool |= 1 << o
            self.hot &= ~(1 << o)
        elif op == Op.USE:
            self.lit |= 1 << o
        elif op == Op.SLICE:
            self.sliced |= 1 << o

    def treated(self, world: World) -> int:
        """Returns a bit mask of the objects that are clean, hot or cool, as the goal requires.

        If the goal requires none of these conditions, all bits are set.
        """
        if world.goal == "pick_clean_then_place_in_recep":
            return self.clean
        if world.goal == "pick_heat_then_place_in_recep":
            return self.hot
        if world.goal == "pick_cool_then_place_in_recep":
            return self.cool
        return -1

    def won(self, world: World) -> bool:
        """Returns whether this state reaches the goal of the task.

        In a look-at task, the agent has to hold a target object beside a lamp that is lit. In other tasks, enough
        target objects have to lie in one destination, cleaned, heated or cooled if the goal requires that.
        """
        if world.looking:
            return (
                self.held != NOWHERE
                and self.at != NOWHERE
                and bool(world.targets >> self.held & 1)
                and bool(self.contents[self.at] & world.toggles & self.lit)
            )
        ready = world.targets & self.treated(world)
        return any((self.contents[r] & ready).bit_count() >= world.wanted for r in bits(world.destinations))

    def describe(self, world: World, command: Command) -> str:
        op, o, r = command
        if op in (Op.GO, Op.OPEN, Op.LOOK_INTO):
            seen = world.contents(r, self.contents[r], bool(self.opened >> r & 1))
            if op == Op.GO:
                return f"You arrive at {world.receptacles[r]}. {seen}"
            return f"You open the {world.receptacles[r]}. {seen}" if op == Op.OPEN else seen
        if op == Op.CLOSE:
            return f"You close the {world.receptacles[r]}."
        if op == Op.TAKE:
            return f"You pick up the {world.objects[o]} from the {world.receptacles[r]}."
        if op == Op.MOVE:
            return f"You move the {world.objects[o]} to the {world.receptacles[r]}."
        if op in (Op.CLEAN, Op.HEAT, Op.COOL):
            verb = {Op.CLEAN: "clean", Op.HEAT: "heat", Op.COOL: "cool"}[op]
            return f"You {verb} the {world.objects[o]} using the {world.receptacles[r]}."
        if op == Op.USE:
            return f"You turn on the {world.objects[o]}."
        if op == Op.SLICE:
            return f"You sliced the {world.objects[o]} with the {world.objects[r]}."
        if op == Op.LOOK_AT:
            return self._object(world, o)
        if op == Op.INVENTORY:
            if self.held == NOWHERE:
                return "You are not carrying anything."
            return f"You are carrying: a {world.objects[self.held]}."
        if op == Op.LOOK:
            if self.at == NOWHERE:
                return MIDDLE.format("nothing")  # only the first message of the episode lists the receptacles
            return f"You are facing the {world.receptacles[self.at]}. Next to it, you see nothing."
        assert op == Op.HELP
        return HELP_TEXT

    def _object(self, world: World, o: int) -> str:
        name = world.objects[o]
        if world.vessels >> o & 1:
            return f"This is a normal {name}. In it, you see nothing."
        hot, cool = self.hot >> o & 1, self.cool >> o & 1
        clean, sliced = self.clean >> o & 1, self.sliced >> o & 1
        if cool and not clean and not sliced:
            return f"This is a cold {name}."
        warmth = ["hot"] if hot else ["cool"] if cool else []
        words = " and ".join(warmth + ["clean"] * clean)
        words = " ".join([words] * bool(words) + ["sliced"] * sliced)
        return f"This is a {words} {name}." if words else f"There's nothing special about {name}."


UNREACHABLE = 1_000_000


class Aim(NamedTuple):
    """The part of a task's goal that a plan has to reach.

    ``targets`` and ``lamps`` are bit masks of the target objects and lamps whose places the plan may use.
    """

    targets: int
    lamps: int
    wanted: int  # number of objects to place; in a look-at task 1 (take the target, use the lamp) or 0 (only take it)


def full_aim(world: World) -> Aim:
    return Aim(world.targets, world.toggles, world.wanted)


def known_aim(world: World, state: State) -> Aim | None:
    """Returns the part of the goal that the agent can reach with its observations; None if a search has to come first.

    If the goal asks for two objects and only one object was found, the aim is to place the found object. If the lamp
    was not found yet, the aim is to take the object to look at.
    """
    known = state.known()
    targets, lamps = world.targets & known, world.toggles & known
    if not targets:
        return None
    if world.looking:
        if lamps:
            return Aim(targets, lamps, 1)
        in_hand = state.held != NOWHERE and targets >> state.held & 1
        return None if in_hand else Aim(targets, 0, 0)
    wanted = min(world.wanted, targets.bit_count())
    aim = Aim(targets, 0, wanted)
    return None if wanted < world.wanted and distance(world, state, aim) == 0 else aim


def distance(world: World, state: State, aim: Aim) -> int:
    """Returns the number of actions of the shortest plan from ``state`` to ``aim``; ``UNREACHABLE`` if none exists."""
    at, held, contents = state.at, state.held, state.contents
    closed = world.openable & ~state.opened
    treated = state.treated(world)
    if held == NOWHERE:
        return _empty_handed(world, aim, at, closed, contents, treated, state.lit)
    if not world.looking and _placed(world, aim, contents, treated):
        return 0
    best = UNREACHABLE
    if aim.targets >> held & 1:
        if world.looking:
            if not aim.wanted:
                return 0
            return min(
                ((at != q) + (not aim.lamps & contents[q] & state.lit) for q in _places(contents, aim.lamps)),
                default=UNREACHABLE,
            )
        if not treated >> held & 1:
            best = _treat_and_place(world, held, at, closed)
    for d in bits(world.fits[held]):
        cost = (at != d) + (closed >> d & 1) + 1
        if cost >= best:
            continue
        after = contents[:]
        after[d] |= 1 << held
        best = min(best, cost + _empty_handed(world, aim, d, closed & ~(1 << d), after, treated, state.lit))
    return best


def _empty_handed(world: World, aim: Aim, at: int, closed: int, contents: list[int], treated: int, lit: int) -> int:
    sources = _places(contents, aim.targets)
    if world.looking:
        if not aim.wanted:
            return min(((at != p) + (closed >> p & 1) + 1 for p in sources), default=UNREACHABLE)
        lamps = [(q, not aim.lamps & contents[q] & lit) for q in _places(contents, aim.lamps)]
        return min(
            ((at != p) + (closed >> p & 1) + 1 + (p != q) + unlit for p in sources for q, unlit in lamps),
            default=UNREACHABLE,
        )
    if _placed(world, aim, contents, treated):
        return 0
    ready = aim.targets & treated
    if aim.wanted == 2:
        return _pair(world, aim, at, closed, contents, sources)
    best = UNREACHABLE
    for p in sources:
        take = (at != p) + (closed >> p & 1) + 1
        shut = closed & ~(1 << p)
        if contents[p] & ready:
            carry = min(((p != r) + (shut >> r & 1) + 1 for r in bits(world.destinations)), default=UNREACHABLE)
            best = min(best, take + carry)
        for o in bits(contents[p] & aim.targets & ~treated):
            best = min(best, take + _treat_and_place(world, o, p, shut))
    return best


def _placed(world: World, aim: Aim, contents: list[int], treated: int) -> bool:
    ready = aim.targets & treated
    return any((contents[r] & ready).bit_count() >= aim.wanted for r in bits(world.destinations))


def _treat_and_place(world: World, o: int, at: int, closed: int) -> int:
    things, stations = world.treatment
    if not things >> o & 1:
        return UNREACHABLE
    return min(
        ((at != s) + 1 + (s != r) + (closed >> r & 1) + 1 for s in bits(stations) for r in bits(world.destinations)),
        default=UNREACHABLE,
    )


def _pair(world: World, aim: Aim, at: int, closed: int, contents: list[int], sources: list[int]) -> int:
    best = UNREACHABLE
    for r in bits(world.destinations):
        others = [p for p in sources if p != r]
        shut = closed >> r & 1
        if contents[r] & aim.targets:  # one of the two targets lies in this destination already
            best = min([best, *((at != p) + (closed >> p & 1) + 3 + shut for p in others)])
            continue
        for p in others:
            first = (at != p) + (closed >> p & 1) + 3 + shut
            for p2 in others:
                if p2 != p:
                    best = min(best, first + 4 + (closed >> p2 & 1))
                elif (contents[p] & aim.targets).bit_count() > 1:
                    best = min(best, first + 4)
    return best


def _places(contents: list[int], objects: int) -> list[int]:
    return [r for r, mask in enumerate(contents) if mask & objects]


class HouseholdSession(GameSession):
    """A running episode of ``env=household``.

    An action that is unknown or not possible now gets the answer "Nothing happens." and counts as a turn.
    """

    def __init__(self, task: Task, world: World, horizon: int) -> None:
        self.task = task
        self.world = world
        self.horizon = horizon
        self.state = State(world.start[:])
        self.turns = 0
        self.won = self.state.won(world)
        self.done = self.won

    def intro(self) -> str:
        return self.world.opening

    def play(self, command: str) -> Step:
        check_open(self.task, self.done, self.turns)
        self.turns += 1
        world, state = self.world, self.state
        meant = world.commands.get(command.strip())
        if meant is not None and state.admits(world, meant):
            admissible = True
            state.apply(world, meant)
            observation = state.describe(world, meant)
            self.won = state.won(world)
        else:
            admissible, observation = False, NOTHING
        self.done = self.won or self.turns >= self.horizon
        return Step(observation, float(self.won), self.done, self.won, {"admissible": admissible})

    def fork(self) -> HouseholdSession:
        twin = copy.copy(self)
        twin.state = self.state.copy()
        return twin

    def admissible(self) -> list[str]:
        """Returns all commands that are possible now, in alphabetical order as in TextWorld."""
        world, state = self.world, self.state
        return sorted(world.texts[c] for c in world.nearby[state.at] if state.admits(world, c))
