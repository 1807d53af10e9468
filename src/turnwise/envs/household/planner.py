"""Computes the exact number of actions of the shortest plan that reaches the goal of a household task.

A plan has only a few forms, so its length is computed without a search, as a minimum over the objects, their places and
the destinations. The agent takes a target object, treats it (cleans, heats or cools it) if the goal requires that, and
puts it down at a destination. If the goal needs a second target, the agent repeats these actions. If the agent holds an
object at the start, it delivers this object, or puts the object down on the way and continues with empty hands. Tests
compare the result with a breadth-first search.
"""

from __future__ import annotations

from typing import NamedTuple

from turnwise.envs.household.state import NOWHERE, State
from turnwise.envs.household.world import World, bits

UNREACHABLE = 1_000_000


class Aim(NamedTuple):
    """The part of a task's goal that a plan has to reach.

    ``targets`` and ``lamps`` are bit masks of the target objects and lamps whose places the plan may use.
    """

    targets: int
    lamps: int
    wanted: int  # number of objects to place; in a look-at task 1 (take the target, use the lamp) or 0 (only take it)


def full_aim(world: World) -> Aim:
    """Returns the whole goal of a task as an aim with the places of all target objects and lamps."""
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
    """Returns how many actions the agent needs to treat (clean, heat or cool) and place the held object ``o``."""
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
