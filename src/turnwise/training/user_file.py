"""Reads the trajectories of a user's file, renders its dialogues, and holds some dialogues out for evaluation.

A *dialogue* is a trajectory that belongs to no environment of the run. A hash of the dialogue's beginning (everything
before the first reply) decides whether the dialogue is held out, so that a file always gives the same split. Dialogues
with equal beginnings (for example several trajectories of one task, or the records of a file that has one record for
each turn) are either all held out or all trained on. If too many dialogues have equal beginnings, the hash of the whole
dialogue is used instead.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from turnwise.config.settings import DataSettings
from turnwise.data.chat_tokens import ChatTemplateError
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.dialect import Dialect, check_read_back, drops_reasoning, drops_text, refuse_lost_tools, uses_tools
from turnwise.data.read_records import UnusableError
from turnwise.errors import InputError
from turnwise.types import Trajectory

FLOOR, PART = 8, 4  # at least FLOOR dialogues are held out, but in a small file only 1 / PART of its dialogues
_PLAYED = 2.0  # value in ``draws`` for a trajectory of an environment; the values of dialogues are in [0, 1)


@dataclass(slots=True)
class UserFile:
    """Takes the trajectories of a user's file one at a time, and decides which of its dialogues are held out.

    Args:
        dialect: the way in which the chat template renders dialogues.
        environments: names of the run's environments. A trajectory without a task of these environments is a dialogue.
    """

    demonstrations: Demonstrations
    dialect: Dialect
    data: DataSettings
    environments: Collection[str]
    # Two numbers for each trajectory, which decide whether it is held out: the hash of its beginning (``draws``) and
    # the hash of the whole trajectory (``whole``). Both are ``_PLAYED`` for a trajectory of an environment.
    draws: array[float] = field(default_factory=lambda: array("d"))
    whole: array[float] = field(default_factory=lambda: array("d"))
    alike: bool = False  # whether too many dialogues have equal beginnings
    strange: Counter[str] = field(default_factory=Counter)  # environments in the file that the run does not have
    folded: int = 0  # dialogues whose system message is merged into the first user message
    as_text: int = 0  # dialogues whose tools and calls are written as text
    silenced: int = 0  # dialogues in which the chat template drops the text of replies that also have calls
    unreasoned: int = 0  # dialogues in which the chat template drops the reasoning of replies
    pivots: int = 0  # dialogues in which only the last reply is a candidate
    rated: int = 0  # pivot dialogues that have a pass rate

    def __call__(self, trajectory: Trajectory) -> None:
        """Adds a trajectory to the demonstrations.

        Raises:
            UnusableError: the chat template cannot render the trajectory, or another trajectory has the same id.
            InputError: the chat template cannot render tools, and ``data.tools_as_text`` is False.
        """
        named = trajectory.task.env if trajectory.task else ""
        played = named in self.environments
        if not played:
            trajectory = replace(trajectory, task=None)
        shown = trajectory if played else self._shown(trajectory)
        try:
            self.demonstrations.add(
                trajectory, shown, lambda actions, replies: self._check(trajectory, actions, replies, played)
            )
        except ChatTemplateError as error:
            raise UnusableError(
                str(error),
                "leave out this trajectory, or show tools as text with data.tools_as_text=true",
                "refused by the chat template",
            ) from error
        self.strange[named] += bool(named) and not played
        self.pivots += trajectory.pivot is not None
        self.rated += bool(trajectory.pivot and trajectory.pivot.total)
        acts = next(i for i, message in enumerate(trajectory.messages) if message["role"] == "assistant")
        self.draws.append(_PLAYED if played else _draw([trajectory.messages[:acts], trajectory.tools]))
        self.whole.append(_PLAYED if played else _draw([trajectory.messages, trajectory.tools]))

    def _shown(self, trajectory: Trajectory) -> Trajectory:
        tools = uses_tools(trajectory)
        if tools and self.dialect.lost_tools and self.data.tools_as_text is False:
            raise refuse_lost_tools(self.dialect, self.demonstrations.chat.name)
        as_text = bool(tools and self.dialect.lost_tools)
        self.as_text += as_text
        system = (as_text and trajectory.tools) or trajectory.messages[0]["role"] == "system"
        self.folded += bool(self.dialect.lost_system and system)
        return self.dialect(trajectory)

    def _check(self, trajectory: Trajectory, actions: Sequence[str], replies: Sequence[str], played: bool) -> None:
        if played:
            empty = next((turn for turn, action in enumerate(actions) if not action.strip()), None)
            lost = "" if empty is None else f"{trajectory.id}#t{empty} is rendered as an empty reply"
        else:
            lost = check_read_back(self.dialect, trajectory, actions)
            self.silenced += not lost and drops_text(trajectory, actions)
            self.unreasoned += not lost and drops_reasoning(trajectory, replies)
        if lost:
            raise UnusableError(
                lost,
                "use a chat template that shows the reply, set data.format to the format of the calls, or set "
                "data.tools_as_text=true",
                "lost by the chat template",
            )

    # -- facts about the file after reading ----------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """Returns log lines that tell the user how the dialogues of the file are rendered and judged."""
        count = self.dialogues
        if not count:
            return []
        lines = [
            f"{count} dialogues without an environment are judged against their demonstrated replies: {self._rule()}"
        ]
        if self.pivots:
            lines.append(
                f"{self.pivots} of these dialogues are pivot rows, in which only the last reply is a candidate; "
                f"{self.rated} pivot rows have a pass rate"
            )
        if self.as_text:
            lines.append(
                f"{self.dialect.lost_tools}: in {self.as_text} dialogues the tools are listed in the system turn, and calls are "
                f"written as text ({self.dialect.format})"
            )
        if self.folded:
            lines.append(
                f"{self.dialect.lost_system}: in {self.folded} dialogues this turn is moved into the first user message"
            )
        if self.silenced:
            lines.append(
                f"in {self.silenced} dialogues, the chat template leaves out the text of replies that also have calls; "
                "data.tools_as_text=true keeps this text"
            )
        if self.unreasoned:
            lines.append(
                f"in {self.unreasoned} dialogues, the chat template leaves out the reasoning of replies, so it is not "
                "trained on; write it at the start of the message's content, as <think>...</think>, or use a chat "
                "template that shows it"
            )
        if self.alike:
            lines.append(
                "many dialogues have the same beginning, so a hash of the whole dialogue decides which dialogues are held "
                "out: of several trajectories of one task, some may be held out and others trained on"
            )
        for name, number in self.strange.items():
            if number:
                lines.append(
                    f"{number} of these dialogues name the environment {name!r}, which this run does not play; "
                    f"set env={name} to play it"
                )
        return lines

    def _rule(self) -> str:
        texts = f"a reply in text by the similarity of its words (at least {self.data.similarity:g})"
        calls = f"calls by name and arguments ({self.dialect.format})"
        arguments = (
            f"{calls}, texts in arguments if at least {self.data.word_overlap:g} of the words are common, and a reply in "
            "text accepts any text"
        )
        following = [f"{calls}, {texts}"] * (self.pivots < self.dialogues) + [arguments] * bool(self.pivots)
        return {
            "strict": "the same calls in the same order, or the same text",
            "calls": calls,
            "similarity": texts,
            "arguments": arguments,
        }.get(self.data.verifier or "", "; pivot rows: ".join(following)) + "; data.verifier sets another rule"

    @property
    def dialogues(self) -> int:
        return sum(draw < 1 for draw in self.draws)

    @property
    def only_dialogues(self) -> bool:
        return self.dialogues == len(self.draws)

    def held_out(self) -> list[int]:
        """Returns the numbers of the held-out dialogues in the order of their hashes. The number of a dialogue is its
        position among all trajectories of the file, from 0.

        Raises:
            InputError: no dialogue would be left to train on, because all dialogues are copies of one dialogue.
        """
        count = self.dialogues
        if not self.data.held_out or not count:
            return []
        if count == 1 and self.only_dialogues:
            raise InputError(
                f"{self.data.file}: its only dialogue cannot be both trained on and held out; add dialogues, or set "
                "data.held_out=0"
            )
        draws, wanted = self.draws, self._wanted(self.draws)
        self.alike = Counter(draw for draw in draws if draw < 1).most_common(1)[0][1] > wanted
        if self.alike:
            draws, wanted = self.whole, self._wanted(self.whole)
        order = sorted((number for number, draw in enumerate(draws) if draw < 1), key=lambda i: (draws[i], i))
        most = count - self.only_dialogues
        end = min(wanted, most)
        while end < count and draws[order[end]] == draws[order[end - 1]]:
            end += 1  # copies of a dialogue have equal hashes and stay together
        if end > most:  # nothing would be left to train on, so the copies of the last dialogue are trained on
            end = next(place for place, number in enumerate(order) if draws[number] == draws[order[-1]])
        if not end:
            raise InputError(
                f"{self.data.file}: all its dialogues are copies of one dialogue, which cannot be both trained on and "
                "held out; add other dialogues, or set data.held_out=0"
            )
        return order[:end]

    def _wanted(self, draws: Sequence[float]) -> int:
        """Returns how many dialogues to hold out: as many as have a hash in ``draws`` below ``data.held_out``, but at
        most half. At least ``FLOOR`` dialogues are held out, or in a small file one in ``PART`` (at least one).
        """
        drawn = sum(draw < self.data.held_out for draw in draws)
        return max(min(FLOOR, max(1, self.dialogues // PART)), min(drawn, self.dialogues // 2))


def _draw(said: object) -> float:
    """Returns a number in [0, 1) that is computed from a hash of ``said``."""
    text = json.dumps(said, sort_keys=True, default=dict)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
