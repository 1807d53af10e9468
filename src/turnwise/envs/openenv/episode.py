"""A running episode on an OpenEnv server."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from turnwise.data.tool_schema import check_call
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError, split_thinking
from turnwise.envs.calls import refusal
from turnwise.envs.environment import EnvironmentFault, Step
from turnwise.envs.openenv.connection import Connection, RefusedActionError
from turnwise.envs.tool_messages import Tools, answered, opened, templated
from turnwise.types import Message

ACT = "act"
HOW = "Write the action as act(parameter=value)."
_OWN = ("done", "reward", "metadata")  # fields that the package openenv adds to every observation


class OpenenvEpisode:
    """A running episode on an OpenEnv server. It implements ``turnwise.envs.shared_episode.Episode``.

    Args:
        connection: a session on the server that was just reset.
        tools: the definition of the tool with which the policy acts; empty if ``field`` is given.
        field: the field of the server's actions that gets the text of the policy's reply. None means that the policy
            replies with calls.
        shows: fields of the observation that the policy sees; empty means all.
        form: the format of calls.
        system: the system message to the policy; it may be empty.
        horizon: number of turns after which the episode ends even if the environment would continue.
        threshold: the episode is won if the sum of its rewards is at least ``threshold``.
    """

    def __init__(
        self,
        connection: Connection,
        tools: Tools,
        field: str | None,
        shows: Sequence[str],
        form: Format,
        system: str,
        horizon: int,
        threshold: float,
    ) -> None:
        self.form, self.field, self.shows, self.system = form, field, tuple(shows), system
        self.horizon, self.threshold = horizon, threshold
        self._connection, self._tools = connection, tools
        self._turns, self._paid = 0, 0.0

    @property
    def tools(self) -> Tools:
        """Returns the tools that the chat template shows; empty with ``field``, or if the system message lists them."""
        return self._tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        """Returns the observation after the reset, with a system message before it unless that would be empty."""
        return opened(self.system, self._tools, self.form, self._text(self._connection.first.observation), HOW)

    def act(self, text: str) -> Step:
        """Sends the action in the policy's reply to the server and returns the server's answer.

        A reply that cannot be parsed, or whose action the server refuses, also counts as a turn.

        Raises:
            EnvironmentFault: the server failed.
        """
        self._turns += 1
        try:
            result = self._connection.step(self._action(text))
        except (ToolCallError, RefusedActionError) as error:
            return self._step(refusal(error), 0.0, False, {"admissible": False})
        reward = float(result.reward or 0.0)
        if not math.isfinite(reward):
            raise EnvironmentFault(
                f"{self._connection.url}: the server returned the reward {reward}, which is not a finite number"
            )
        return self._step(self._text(result.observation), reward, bool(result.done), {"admissible": True})

    def close(self) -> None:
        self._connection.close()

    def _step(self, text: str, reward: float, done: bool, info: dict[str, Any]) -> Step:
        self._paid += reward
        done = done or self._turns >= self.horizon
        won = done and self._paid >= self.threshold
        return Step(text, reward, done, won, info, answered([text], self.form) if self._tools else ())

    def _action(self, text: str) -> dict[str, Any]:
        if self.field is not None:
            said = split_thinking(text)[1]
            if any("\ud800" <= character <= "\udfff" for character in said):
                raise ToolCallError("half a surrogate pair in the reply")
            return {self.field: said}
        calls = PARSERS[self.form](text, self._tools).calls
        if len(calls) != 1:
            raise ToolCallError(f"one call of {ACT} a turn, got {len(calls)}")
        if problems := check_call({"name": calls[0].name, "arguments": calls[0].arguments}, self._tools):
            raise ToolCallError("; ".join(problems))
        return dict(calls[0].arguments)

    def _text(self, observation: Any) -> str:
        """Returns the values of the observation's fields in ``shows``. If ``shows`` is empty, returns all fields as
        JSON, or only the value of a single field.
        """
        if not isinstance(observation, dict):
            return str(observation)
        said = {name: value for name, value in observation.items() if name not in _OWN}
        if self.shows:
            if missing := [name for name in self.shows if name not in said]:
                raise EnvironmentFault(
                    f"{self._connection.url}: the observation has no field {missing[0]!r}; correct env.shows"
                )
            return "\n".join(map(_plain, (said[name] for name in self.shows)))
        return _plain(next(iter(said.values()))) if len(said) == 1 else json.dumps(said, ensure_ascii=False)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
