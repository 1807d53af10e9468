"""Keeps expert trajectories with their tokens on disk, because a run may have more of them than fit into memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from turnwise.data.chat_tokens import ChatTokens, Spine
from turnwise.data.disk_list import DiskList, Names
from turnwise.data.read_records import UnusableError
from turnwise.data.trajectories import used_twice
from turnwise.types import Trajectory

Check = Callable[[Sequence[str], Sequence[str]], None]

_NEAR = 64  # number of recently read trajectories kept in memory, because states of one trajectory are used together


class Demonstration(NamedTuple):
    """An expert trajectory, and its tokens as one or more lists (``spines``; see ``data.chat_tokens``)."""

    trajectory: Trajectory
    spines: list[Spine]


class Demonstrations:
    """A list of expert trajectories on disk, numbered in the order in which they were added.

    The list needs 40 bytes of memory for each trajectory and 8 bytes for each turn. ``chat`` tokenises each trajectory
    once, when the trajectory is added.
    """

    def __init__(self, chat: ChatTokens, folder: Path | None = None) -> None:
        self.chat = chat
        self.names = Names(folder)
        self._kept: DiskList[Demonstration] = DiskList(folder)
        self.starts = array("Q", [0])  # number of turns before each trajectory; the last entry counts all turns
        self.histories = array("I")  # for each turn, the number of tokens before it in its spine
        self.ends = array("I")  # for each turn, the number of tokens of its spine up to the turn's end
        self.number = lru_cache(maxsize=_NEAR)(self.names.place)
        self._near = lru_cache(maxsize=_NEAR)(self._kept.__getitem__)

    def add(self, trajectory: Trajectory, shown: Trajectory | None = None, check: Check | None = None) -> None:
        """Adds an expert trajectory and its tokens at the end of the list.

        Args:
            shown: the trajectory in the form that the chat template can render; None: ``trajectory`` itself.
            check: a function that receives the texts of the rendered replies, in order, first without and then with
                their reasoning. It is called before anything is kept, and it may raise an error to refuse the
                trajectory.

        Raises:
            UnusableError: another trajectory has the same id, or a reply contains an end-of-turn token before its end.
            ChatTemplateError: the chat template refuses the messages.
        """
        first = self.names.place(trajectory.id)
        if first is not None:
            raise used_twice(trajectory.id, self[first].trajectory.source)
        shown = shown or trajectory
        said = shown.messages, shown.tools
        spines = [self.chat.reply(*said)] if trajectory.pivot else self.chat.spines(*said)
        stops = self.chat.stop_ids
        if any(
            spine.ids[at] in stops for spine in spines for start, stop in spine.turns for at in range(start, stop - 1)
        ):
            raise UnusableError(
                "a demonstrated reply continues after the end-of-turn token, at which a policy would stop",
                "remove the chat template's own tokens from the text",
                "end of turn inside",
            )
        if check is not None:
            replies = [spine.ids[start:stop] for spine in spines for start, stop in spine.turns]
            check([self.chat.decode(ids) for ids in replies], [self.chat.written(ids) for ids in replies])
        self.names.append(trajectory.id)
        self._kept.append(Demonstration(trajectory, spines))
        self.histories.extend(start for spine in spines for start, _ in spine.turns)
        self.ends.extend(stop for spine in spines for _, stop in spine.turns)
        self.starts.append(len(self.histories))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, number: int) -> Demonstration:
        return self._near(number)

    def named(self, name: str) -> Trajectory | None:
        """Returns the trajectory whose id is ``name``, or None."""
        number = self.number(name)
        return None if number is None else self[number].trajectory

    # -- turns, numbered over all trajectories
    # ---------------------------------------------------------------------------

    @property
    def turns(self) -> int:
        """Number of assistant turns in all trajectories."""
        return self.starts[-1]

    def of_turn(self, place: int) -> int:
        """Returns the index of the trajectory that contains turn ``place``, counted over all trajectories."""
        return bisect_right(self.starts, place) - 1
