"""A running episode of an agent program.

Each request of the program is a turn of the policy. The program's score is the reward of the last turn.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.data.toolcalls import Format
from turnwise.envs.agent.conversation import Conversation, continuation, spoken
from turnwise.envs.agent.gateway import Asked
from turnwise.envs.agent.program import Program
from turnwise.envs.environment import EnvironmentFault, Step
from turnwise.errors import InputError
from turnwise.sandbox.folder_value import Tree, laid_over
from turnwise.sandbox.sandbox import Bubblewrap, SandboxFault
from turnwise.types import Message

SECONDS = 120  # time limit for computing a score, in seconds
_SHOWN = 600  # maximum number of characters of a program's output in an error message


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the reward of an episode is computed.

    Attributes:
        command: a line of bash that runs in the agent program's folder after the program has ended. The last line of
            the command's output is the reward.
        files: files that are written into the folder before the command runs. The agent program may have changed files
            with these paths.
        threshold: minimum reward at which an episode counts as won.
    """

    command: str
    files: Tree
    threshold: float


class AgentEpisode:
    """A running episode of an agent program. See ``turnwise.envs.shared_episode.Episode``.

    Args:
        program: the agent program, which has just started.
        sandbox: the sandbox in which the score is computed.
        form: the format in which the policy writes calls.
        place: the beginning of error messages, which names the task.
    """

    def __init__(self, program: Program, sandbox: Bubblewrap, scoring: Scoring, form: Format, place: str) -> None:
        self.program, self.sandbox, self.scoring = program, sandbox, scoring
        self.form, self.place = form, place
        self.number = 0  # number of replies so far
        self._asked: Asked | None = None

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Returns the tools that the agent program's waiting request offers; none if no request waits."""
        return self._asked.conversation.tools if self._asked else ()

    def opening(self) -> list[Message]:
        """Waits for the agent program's first request and returns its messages.

        Raises:
            EnvironmentFault: the program ended before it made a request.
        """
        if self._asked is None:
            self._asked = self.program.desk.next()
            if self._asked is None:
                self._ended()
                raise EnvironmentFault(
                    f"{self.place}: the agent program ended ({self._output()}) before it requested a reply from the "
                    "policy; it must send its requests to OPENAI_BASE_URL"
                )
        return list(self._asked.conversation.messages)

    def act(self, text: str) -> Step:
        """Answers the agent program's waiting request with the policy's reply and waits for the next request.

        The returned step holds the messages that the next request adds to the conversation, or all messages of the next
        request if it does not continue the conversation. If the program has ended, the step is the last one, and its
        reward is the score.

        Raises:
            EnvironmentFault: the sandbox failed, or the program ended before it got the policy's reply.
            InputError: the program ended without an error, but its score cannot be read.
        """
        self.opening()
        asked = self._asked
        assert asked is not None  # the session only steps while a request waits
        before = asked.conversation
        reply = spoken(text, before.tools, self.form, self.number)
        self.number += 1
        taken = asked.answer(reply)
        following = self.program.desk.next()
        while not taken and following is not None and following.conversation == before:
            # The agent program disconnected and sent its request again. The repeated request gets this reply.
            taken = following.answer(reply)
            following = self.program.desk.next()
        if not taken and following is None:
            raise EnvironmentFault(
                f"{self.place}: the agent program ended ({self._output()}) while the policy's reply was being sampled"
            )
        self._asked = following
        return self._scored() if following is None else _step(before, reply, following.conversation)

    def close(self) -> None:
        self.program.close()

    def _ended(self) -> tuple[Any, Tree]:
        try:
            return self.program.result.result()
        except SandboxFault as error:
            raise EnvironmentFault(f"sandbox: {error}") from error

    def _output(self) -> str:
        outcome, _ = self._ended()
        how = f"stopped by the {outcome.stopped} limit" if outcome.stopped else f"exit status {outcome.status}"
        return f"{how}, output {outcome.output.strip()[-_SHOWN:]!r}"

    def _scored(self) -> Step:
        outcome, tree = self._ended()
        info: dict[str, Any] = {"status": outcome.status, "stopped": outcome.stopped}
        try:
            limited = f"timeout -k 1 {SECONDS} bash -c {shlex.quote(self.scoring.command)}"
            scored, _ = self.sandbox.shell(limited, laid_over(tree, self.scoring.files))
        except SandboxFault as error:
            raise EnvironmentFault(f"sandbox: {error}") from error
        reward = _number(scored.output) if scored.ok else None
        if reward is None and outcome.ok:
            raise InputError(
                f"env.score: {self.place}: the command {self.scoring.command.splitlines()[-1]!r} must exit with status "
                f"0 and print a number as its last line, but it gave exit status {scored.status} and output "
                f"{scored.output.strip()[-_SHOWN:]!r}. The agent program had ended with {self._output()}. Correct "
                "env.score, or the program if it does not write what is scored"
            )
        if reward is None:  # the agent program failed before it wrote the files that are scored
            info["unscored"], reward = True, 0.0
        return Step("", reward, True, reward >= self.scoring.threshold, info)


def _step(before: Conversation, reply: Message, after: Conversation) -> Step:
    added = continuation(before, reply, after)
    text = "\n".join(str(message["content"]) for message in (after.messages if added is None else added))
    if added is None:
        return Step(text, conversation=after.messages, info={"anew": True})
    return Step(text, messages=added)


def _number(output: str) -> float | None:
    lines = output.strip().splitlines()
    try:
        value = float(lines[-1])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None
