"""Expert trajectories with their tokens, on disk: a run may have more of them than fit into memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from turnwise.data.chat import ChatTokens
from turnwise.data.records import UnusableError
from turnwise.data.shelf import Names, Shelf
from turnwise.data.spines import Spine
from turnwise.data.trajectories import used_twice
from turnwise.types import Trajectory

Check = Callable[[Sequence[str]], None]

_NEAR = 64  # trajectories kept at hand: neighbours are asked for together


class Demonstration(NamedTuple):
    """A trajectory and its tokens; more than one spine where the chat template shows later turns a shortened history."""

    trajectory: Trajectory
    spines: list[Spine]


class Demonstrations:
    """Trajectories by number, in the order in which they were added; they lie in ``folder``.

    Memory: 40 bytes a trajectory, and 8 a turn.

    Args:
        chat: renders and tokenises them, once, when they are added.
        folder: see :class:`turnwise.data.shelf.Shelf`.
    """

    def __init__(self, chat: ChatTokens, folder: Path | None = None) -> None:
        self.chat = chat
        self.names = Names(folder)
        self._shelf: Shelf[Demonstration] = Shelf(folder)
        self._starts = array("Q", [0])  # turns before each trajectory, and in the end of all
        self.histories = array("I")  # tokens before each turn
        self.ends = array("I")  # tokens before each turn and of it
        self.number = lru_cache(maxsize=_NEAR)(self.names.place)
        self._near = lru_cache(maxsize=_NEAR)(self._shelf.__getitem__)

    def add(self, trajectory: Trajectory, shown: Trajectory | None = None, check: Check | None = None) -> None:
        """Put a trajectory behind the others.

        Args:
            trajectory: as it is kept.
            shown: the same as the chat template is to show it, where that differs.
            check: given the text of each rendered reply, in order, before anything is kept; it may refuse them.

        Raises:
            UnusableError: its id was used before.
            ChatTemplateError: the chat template refuses its messages.
        """
        first = self.names.place(trajectory.id)
        if first is not None:
            raise used_twice(trajectory.id, self[first].trajectory.source)
        shown = shown or trajectory
        spines = self.chat.spines(shown.messages, shown.tools)
        stops = self.chat.stop_ids
        if any(
            spine.ids[at] in stops for spine in spines for start, stop in spine.turns for at in range(start, stop - 1)
        ):
            raise UnusableError(
                "a demonstrated reply goes on after the token that ends a turn, which no policy can",
                "take the chat template's own tokens out of the text",
                "end of turn inside",
            )
        if check is not None:
            check([self.chat.decode(spine.ids[start:stop]) for spine in spines for start, stop in spine.turns])
        self.names.append(trajectory.id)
        self._shelf.append(Demonstration(trajectory, spines))
        self.histories.extend(start for spine in spines for start, _ in spine.turns)
        self.ends.extend(stop for spine in spines for _, stop in spine.turns)
        self._starts.append(len(self.histories))

    def __len__(self) -> int:
        return len(self._shelf)

    def __getitem__(self, number: int) -> Demonstration:
        return self._near(number)

    def named(self, name: str) -> Trajectory | None:
        """The trajectory of that id; None where there is none."""
        number = self.number(name)
        return None if number is None else self[number].trajectory

    # -- turns, counted through ----------------------------------------------------------------------------------------

    @property
    def turns(self) -> int:
        """Assistant turns of all trajectories."""
        return self._starts[-1]

    @property
    def starts(self) -> Sequence[int]:
        """How many turns come before each trajectory; one more, all turns."""
        return self._starts

    def of_turn(self, place: int) -> int:
        """The number of the trajectory that the turn at ``place`` belongs to."""
        return bisect_right(self._starts, place) - 1
