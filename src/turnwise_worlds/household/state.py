"""The state of a household episode, shortest plans from it, and the episode itself."""

from __future__ import annotations

from typing import NamedTuple

from turnwise.env import Step
from turnwise.types import Task
from turnwise_worlds.household.rooms import GOALS, HELP_TEXT, MIDDLE, NOTHING, Command, HouseholdRoom, Op, bits
from turnwise_worlds.text_games import GameSession

NOWHERE = -1


# operation that changes the condition of an object -> the condition that it sets, and the one that it ends
_CONDITIONS = {
    Op.CLEAN: ("clean", None),
    Op.HEAT: ("hot", "cool"),
    Op.COOL: ("cool", "hot"),
    Op.USE: ("lit", None),
    Op.SLICE: ("sliced", None),
}
# the answer to an operation, of the names of an object and a receptacle (for SLICE, the knife), and of its contents
_ANSWERS = {
    Op.GO: "You arrive at {r}. {seen}",
    Op.OPEN: "You open the {r}. {seen}",
    Op.LOOK_INTO: "{seen}",
    Op.CLOSE: "You close the {r}.",
    Op.TAKE: "You pick up the {o} from the {r}.",
    Op.MOVE: "You move the {o} to the {r}.",
    Op.CLEAN: "You clean the {o} using the {r}.",
    Op.HEAT: "You heat the {o} using the {r}.",
    Op.COOL: "You cool the {o} using the {r}.",
    Op.USE: "You turn on the {o}.",
}


class State:
    """Everything in a household episode that an action can change.

    In a bit mask, bit i stands for receptacle or object number i of a room. ``seen`` is the mask of the receptacles
    into which the agent has looked. Only the agent moves objects, so it still knows the content of these receptacles.
    """

    def __init__(self, contents: list[int]) -> None:
        self.at = self.held = NOWHERE
        self.opened = self.seen = 0
        self.clean = self.hot = self.cool = self.sliced = self.lit = 0
        self.contents = contents  # receptacle -> mask of the objects in it

    def fork(self) -> State:
        twin = State.__new__(State)
        twin.__dict__.update(self.__dict__)
        twin.contents = self.contents[:]
        return twin

    def known(self) -> int:
        known = 0 if self.held == NOWHERE else 1 << self.held
        for r in bits(self.seen):
            known |= self.contents[r]
        return known

    def accessible(self, world: HouseholdRoom, r: int) -> bool:
        return not (world.openable & ~self.opened) >> r & 1

    def admits(self, world: HouseholdRoom, command: Command) -> bool:
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

    def apply(self, world: HouseholdRoom, command: Command) -> None:
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
        elif op in _CONDITIONS:
            begins, ends = _CONDITIONS[op]
            setattr(self, begins, getattr(self, begins) | 1 << o)
            if ends:
                setattr(self, ends, getattr(self, ends) & ~(1 << o))

    def treated(self, world: HouseholdRoom) -> int:
        """Returns a bit mask of the objects that are clean, hot or cool, as the goal requires; all bits if it does not."""
        operation = GOALS[world.goal].operation
        return int(getattr(self, _CONDITIONS[operation][0])) if operation else -1

    def won(self, world: HouseholdRoom) -> bool:
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
        return _placed(world, full_aim(world), self.contents, self.treated(world))

    def describe(self, world: HouseholdRoom, command: Command) -> str:
        op, o, r = command
        if op in _ANSWERS:
            seen = world.contents(r, self.contents[r], bool(self.opened >> r & 1))
            return _ANSWERS[op].format(o=world.objects[o], r=world.receptacles[r], seen=seen)
        if op == Op.SLICE:
            return f"You sliced the {world.objects[o]} with the {world.objects[r]}."
        if op == Op.LOOK_AT:
            return self._object(world, o)
        if op == Op.INVENTORY:
            nothing = self.held == NOWHERE
            return "You are not carrying anything." if nothing else f"You are carrying: a {world.objects[self.held]}."
        if op == Op.HELP:
            return HELP_TEXT
        if self.at == NOWHERE:
            return MIDDLE.format("nothing")  # only the first message of the episode lists the receptacles
        return f"You are facing the {world.receptacles[self.at]}. Next to it, you see nothing."

    def _object(self, world: HouseholdRoom, o: int) -> str:
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


def full_aim(world: HouseholdRoom) -> Aim:
    return Aim(world.targets, world.toggles, world.wanted)


def known_aim(world: HouseholdRoom, state: State) -> Aim | None:
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


def distance(world: HouseholdRoom, state: State, aim: Aim) -> int:
    """Returns the number of actions of the shortest plan from ``state`` to ``aim``; ``UNREACHABLE`` if none exists."""
    at, held, contents = state.at, state.held, state.contents
    closed, treated = world.openable & ~state.opened, state.treated(world)
    if held == NOWHERE:
        return _empty_handed(world, aim, at, closed, contents, treated, state.lit)
    if not world.looking and _placed(world, aim, contents, treated):
        return 0
    best = UNREACHABLE
    if aim.targets >> held & 1:
        if world.looking:
            return _to_lamp(aim, at, contents, state.lit)
        if not treated >> held & 1:
            best = _treat_and_place(world, held, at, closed)
    for r in bits(world.fits[held]):  # put it down somewhere first
        cost = _reach(at, r, closed) + 1
        if cost < best:
            after = contents[:]
            after[r] |= 1 << held
            best = min(best, cost + _empty_handed(world, aim, r, closed & ~(1 << r), after, treated, state.lit))
    return best


def _reach(at: int, r: int, closed: int) -> int:
    """The number of actions after which the agent stands before the open receptacle ``r``."""
    return (at != r) + (closed >> r & 1)


def _to_lamp(aim: Aim, at: int, contents: list[int], lit: int) -> int:
    if not aim.wanted:
        return 0
    lamps = ((at != q) + (not aim.lamps & mask & lit) for q, mask in enumerate(contents) if mask & aim.lamps)
    return min(lamps, default=UNREACHABLE)


def _empty_handed(
    world: HouseholdRoom, aim: Aim, at: int, closed: int, contents: list[int], treated: int, lit: int
) -> int:
    sources = [p for p, mask in enumerate(contents) if mask & aim.targets]
    if world.looking:
        steps = (_reach(at, p, closed) + 1 + _to_lamp(aim, p, contents, lit) for p in sources)
        return min(UNREACHABLE, min(steps, default=UNREACHABLE))
    if _placed(world, aim, contents, treated):
        return 0
    best = UNREACHABLE
    if aim.wanted == 2:
        for r in bits(world.destinations):
            others = [p for p in sources if p != r]
            if contents[r] & aim.targets:  # one of the two targets lies in this destination already
                best = min([best, *(_reach(at, p, closed) + 3 + (closed >> r & 1) for p in others)])
                continue
            for p in others:
                first = _reach(at, p, closed) + 3 + (closed >> r & 1)
                for q in others:
                    if q != p or (contents[p] & aim.targets).bit_count() > 1:
                        best = min(best, first + 4 + (q != p and closed >> q & 1))
        return best
    for p in sources:
        take, shut = _reach(at, p, closed) + 1, closed & ~(1 << p)
        if contents[p] & aim.targets & treated:
            best = min([best, *(take + _reach(p, r, shut) + 1 for r in bits(world.destinations))])
        for o in bits(contents[p] & aim.targets & ~treated):
            best = min(best, take + _treat_and_place(world, o, p, shut))
    return best


def _placed(world: HouseholdRoom, aim: Aim, contents: list[int], treated: int) -> bool:
    ready = aim.targets & treated
    return any((contents[r] & ready).bit_count() >= aim.wanted for r in bits(world.destinations))


def _treat_and_place(world: HouseholdRoom, o: int, at: int, closed: int) -> int:
    things, stations = world.treatment
    ways = ((at != s) + 2 + _reach(s, r, closed) for s in bits(stations) for r in bits(world.destinations))
    return min(ways, default=UNREACHABLE) if things >> o & 1 else UNREACHABLE


class HouseholdSession(GameSession):
    """A running episode of ``env=household``.

    An action that is unknown or not possible now gets the answer "Nothing happens." and counts as a turn.
    """

    def __init__(self, task: Task, world: HouseholdRoom, horizon: int) -> None:
        self.task, self.world, self.horizon = task, world, horizon
        self.state = State(world.start[:])
        self.won = self.done = self.state.won(world)

    def intro(self) -> str:
        return self.world.opening

    def answer(self, action: str) -> Step:
        world, state = self.world, self.state
        command = world.commands.get(action.strip())
        if command is None or not state.admits(world, command):
            return Step(NOTHING, info={"admissible": False})
        state.apply(world, command)
        won = state.won(world)
        return Step(state.describe(world, command), float(won), won, won, {"admissible": True})

    def admissible(self) -> list[str]:
        """Returns all commands that are possible now, in alphabetical order as in TextWorld."""
        world, state = self.world, self.state
        return sorted(world.texts[c] for c in world.nearby[state.at] if state.admits(world, c))
