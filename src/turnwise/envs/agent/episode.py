"""A live episode of an agent: its requests are the places where the policy acts, and its score pays the last of them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.data.toolcalls.formats import Format
from turnwise.envs.agent.conversation import Conversation, continuation, spoken
from turnwise.envs.agent.gateway import Asked
from turnwise.envs.agent.program import Program
from turnwise.envs.environment import EnvironmentFault, Step
from turnwise.errors import InputError
from turnwise.sandbox.sandbox import Sandbox, SandboxFault
from turnwise.sandbox.tree import Tree, laid_over
from turnwise.types import Message

SECONDS = 120  # of a score
_SHOWN = 600  # characters of a program's output in a message


@dataclass(frozen=True, slots=True)
class Scoring:
    """How an episode is paid.

    Attributes:
        command: bash that runs in the folder that the agent left; its last line of output is the reward.
        files: what is put into the folder first, in the place of what the agent may have written there.
        threshold: reward from which an episode is won.
    """

    command: str
    files: Tree
    threshold: float


class AgentEpisode:
    """See ``turnwise.envs.replay.Episode``.

    Args:
        program: just started.
        sandbox: in which it is scored.
        form: how the policy writes calls.
        place: names the task, for messages.
    """

    def __init__(self, program: Program, sandbox: Sandbox, scoring: Scoring, form: Format, place: str) -> None:
        self.program, self.sandbox, self.scoring = program, sandbox, scoring
        self.form, self.place = form, place
        self.number = 0  # replies so far
        self._asked: Asked | None = None

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools of the request that waits."""
        return self._asked.conversation.tools if self._asked else ()

    def opening(self) -> list[Message]:
        """Returns the messages of the first request.

        Raises:
            EnvironmentFault: the program ended before it made one.
        """
        if self._asked is None:
            self._asked = self.program.desk.next()
            if self._asked is None:
                self._ended()
                raise EnvironmentFault(f"{self.place}: the agent ended before it asked for a reply: {self._output()}")
        return list(self._asked.conversation.messages)

    def act(self, text: str) -> Step:
        """Answers the request that waits, and returns what the next one adds to it, or the score at the end of the program.

        Raises:
            EnvironmentFault: the sandbox failed, or the program ended while the policy wrote.
            InputError: a program that ended well has no score.
        """
        self.opening()
        asked = self._waiting()
        before = asked.conversation
        reply = spoken(text, before.tools, self.form, self.number)
        self.number += 1
        taken = asked.answer(reply)
        following = self.program.desk.next()
        while not taken and following is not None and following.conversation == before:
            taken = following.answer(reply)  # the agent hung up and asks again: it gets the reply that is its due
            following = self.program.desk.next()
        if not taken and following is None:
            raise EnvironmentFault(f"{self.place}: the agent ended before its reply was sampled: {self._output()}")
        self._asked = following
        return self._scored() if following is None else _step(before, reply, following.conversation)

    def close(self) -> None:
        """Ends the program."""
        self.program.close()

    def _waiting(self) -> Asked:
        assert self._asked is not None  # a session steps only while one waits
        return self._asked

    def _ended(self) -> tuple[Any, Tree]:
        try:
            return self.program.result.result()
        except SandboxFault as error:
            raise EnvironmentFault(f"sandbox: {error}") from error

    def _output(self) -> str:
        outcome, _ = self._ended()
        how = f"stopped by the limit of {outcome.stopped}" if outcome.stopped else f"exit status {outcome.status}"
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
                f"env.score: {self.place}: {self.scoring.command.splitlines()[-1]!r} must end well, and the last line "
                f"of its output must be a number, got {scored.output.strip()[-_SHOWN:]!r}; the agent ended with {self._output()}"
            )
        if reward is None:  # the agent failed before it could leave what is scored
            info["unscored"], reward = True, 0.0
        return Step("", reward, True, reward >= self.scoring.threshold, info)


def _step(before: Conversation, reply: Message, after: Conversation) -> Step:
    added = continuation(before, reply, after)
    shown = added if added is not None else after.messages
    text = "\n".join(str(message["content"]) for message in shown)
    return (
        Step(text, messages=added)
        if added is not None
        else Step(text, conversation=after.messages, info={"anew": True})
    )


def _number(output: str) -> float | None:
    lines = output.strip().splitlines()
    try:
        value = float(lines[-1])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None
