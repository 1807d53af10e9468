"""The part of a household episode that actions change. The agent is the policy or a scripted expert.

Preconditions and effects of commands follow ALFWorld's planning domain. To heat, clean or cool an object, the agent
only has to stand at the appliance with the object in its hands. To use a lamp, the agent has to stand at the receptacle
on which the lamp stands. The lamp stays lit afterwards.
"""

from __future__ import annotations

from turnwise.envs.household.world import (
    CLEAN,
    CLOSE,
    COOL,
    GO,
    HEAT,
    HELP,
    HELP_TEXT,
    INVENTORY,
    LOOK,
    LOOK_AT,
    LOOK_INTO,
    MIDDLE,
    MOVE,
    OPEN,
    SLICE,
    TAKE,
    USE,
    Command,
    World,
    bits,
)

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
        """Returns the whole state as one hashable value."""
        return (
            self.at,
            self.held,
            self.opened,
            self.seen,
            self.clean,
            self.hot,
            self.cool,
            self.sliced,
            self.lit,
            *self.contents,
        )

    def known(self) -> int:
        """Returns a bit mask of the objects whose places the agent knows."""
        known = 0 if self.held == NOWHERE else 1 << self.held
        for r in bits(self.seen):
            known |= self.contents[r]
        return known

    def accessible(self, world: World, r: int) -> bool:
        """Returns whether receptacle ``r`` is open or has no door, so that objects can be put in and taken out."""
        return not (world.openable & ~self.opened) >> r & 1

    def admits(self, world: World, command: Command) -> bool:
        """Returns whether the command is possible in this state."""
        op, o, r = command
        at = self.at
        if op == GO:
            return at != r
        if op >= INVENTORY:
            return True
        if op == LOOK_AT:
            return self.held == o  # as in the ALFWorld engine, an object can be examined only while it is held
        if op == USE:
            return at != NOWHERE and bool(self.contents[at] >> o & 1)
        if op == SLICE:
            return self.held == r and at != NOWHERE and bool(self.contents[at] >> o & 1)
        if at != r:
            return False
        if op == TAKE:
            return self.held == NOWHERE and bool(self.contents[r] >> o & 1) and self.accessible(world, r)
        if op == MOVE:
            return self.held == o and self.accessible(world, r)
        if op == OPEN:
            return not self.opened >> r & 1
        if op == CLOSE:
            return bool(self.opened >> r & 1)
        return op == LOOK_INTO or self.held == o  # the remaining operations are cleaning, heating and cooling

    def apply(self, world: World, command: Command) -> None:
        """Applies a command, which must be possible in this state (:meth:`admits`)."""
        op, o, r = command
        if op == GO:
            self.at = r
            if self.accessible(world, r):
                self.seen |= 1 << r
        elif op == OPEN:
            self.opened |= 1 << r
            self.seen |= 1 << r
        elif op == CLOSE:
            self.opened &= ~(1 << r)
        elif op == TAKE:
            self.contents[r] &= ~(1 << o)
            self.held = o
        elif op == MOVE:
            self.contents[r] |= 1 << o
            self.held = NOWHERE
        elif op == CLEAN:
            self.clean |= 1 << o
        elif op == HEAT:
            self.hot |= 1 << o
            self.cool &= ~(1 << o)
        elif op == COOL:
            self.cool |= 1 << o
            self.hot &= ~(1 << o)
        elif op == USE:
            self.lit |= 1 << o
        elif op == SLICE:
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
        """Returns the observation of ``command``, which must already have been applied to this state."""
        op, o, r = command
        if op in (GO, OPEN, LOOK_INTO):
            seen = world.contents(r, self.contents[r], bool(self.opened >> r & 1))
            if op == GO:
                return f"You arrive at {world.receptacles[r]}. {seen}"
            return f"You open the {world.receptacles[r]}. {seen}" if op == OPEN else seen
        if op == CLOSE:
            return f"You close the {world.receptacles[r]}."
        if op == TAKE:
            return f"You pick up the {world.objects[o]} from the {world.receptacles[r]}."
        if op == MOVE:
            return f"You move the {world.objects[o]} to the {world.receptacles[r]}."
        if op in (CLEAN, HEAT, COOL):
            verb = {CLEAN: "clean", HEAT: "heat", COOL: "cool"}[op]
            return f"You {verb} the {world.objects[o]} using the {world.receptacles[r]}."
        if op == USE:
            return f"You turn on the {world.objects[o]}."
        if op == SLICE:
            return f"You sliced the {world.objects[o]} with the {world.objects[r]}."
        if op == LOOK_AT:
            return self._object(world, o)
        if op == INVENTORY:
            if self.held == NOWHERE:
                return "You are not carrying anything."
            return f"You are carrying: a {world.objects[self.held]}."
        if op == LOOK:
            if self.at == NOWHERE:
                return MIDDLE.format("nothing")  # only the first message of the episode lists the receptacles
            return f"You are facing the {world.receptacles[self.at]}. Next to it, you see nothing."
        assert op == HELP
        return HELP_TEXT

    def _object(self, world: World, o: int) -> str:
        """Returns the description of an object, as in ALFWorld. "cold" becomes "cool" beside another adjective."""
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
