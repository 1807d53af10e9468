"""Holds a run's expert trajectories, each with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from turnwise.data.chat_tokens import ChatTokens, Spine
from turnwise.data.read_records import UnusableError
from turnwise.data.trajectories import used_twice
from turnwise.types import Trajectory

Check = Callable[[Sequence[str], Sequence[str]], None]


class Demonstration(NamedTuple):
    """An expert trajectory, and its tokens as one or more lists (``spines``; see ``data.chat_tokens``)."""

    trajectory: Trajectory
    spines: list[Spine]


class Demonstrations:
    """Expert trajectories by id, in the order in which they were added. ``chat`` tokenises each of them once."""

    def __init__(self, chat: ChatTokens) -> None:
        self.chat = chat
        self._by_id: dict[str, Demonstration] = {}

    def add(self, trajectory: Trajectory, shown: Trajectory | None = None, check: Check | None = None) -> None:
        """Adds an expert trajectory and its tokens.

        Args:
            shown: the trajectory in the form that the chat template can render; None: ``trajectory`` itself.
            check: a function that receives the texts of the rendered replies, in order, first without and then with
                their reasoning. It may raise an error to refuse the trajectory.

        Raises:
            UnusableError: another trajectory has the same id, or a reply contains an end-of-turn token before its end.
            ChatTemplateError: the chat template refuses the messages.
        """
        if trajectory.id in self._by_id:
            raise used_twice(trajectory.id, self._by_id[trajectory.id].trajectory.source)
        shown = shown or trajectory
        rendered = shown.messages, shown.tools
        spines = [self.chat.reply(*rendered)] if trajectory.pivot else self.chat.spines(*rendered)
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
        self._by_id[trajectory.id] = Demonstration(trajectory, spines)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Demonstration]:
        return iter(self._by_id.values())

    def named(self, name: str) -> Trajectory | None:
        """Returns the trajectory whose id is ``name``, or None."""
        demonstration = self._by_id.get(name)
        return demonstration and demonstration.trajectory
