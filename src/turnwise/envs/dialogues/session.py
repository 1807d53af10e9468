"""A running dialogue between a user, who makes requests, and the policy, which fulfils the requests by tool calls."""

from __future__ import annotations

import copy

from turnwise.data.tool_schema import signature
from turnwise.data.toolcalls import Format
from turnwise.envs.dialogues.multi_turn_check import STOPPED, Reference
from turnwise.envs.dialogues.problem import DialogueProblem, World
from turnwise.envs.environment import Step, check_open
from turnwise.envs.tool_messages import Tools, answered, read_calls, templated
from turnwise.types import Message, Task, ToolCall

HOW = (
    "Call a function as name(parameter=value), several as [f(a=1), g()]. Reply without a call when the request is "
    "served."
)


class DialogueSession:
    """A running dialogue. See ``turnwise.envs.environment.Session``.

    A reply without a call, or a reply that cannot be parsed, ends the user turn, as in BFCL. The user's next message
    follows. The episode is lost if a user turn fails the check (``dialogues.multi_turn_check``), if the policy gives
    more than ``steps`` replies with calls to one user message, or if the dialogue has not ended after ``horizon`` turns
    of the policy.
    """

    __slots__ = (
        "brief", "done", "fault", "form", "horizon", "made", "problem", "reference", "seen", "steps", "steps_made",
        "task", "turn", "turns", "won", "world",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        problem: DialogueProblem,
        reference: Reference,
        form: Format,
        horizon: int,
        steps: int,
        brief: bool,
    ) -> None:
        self.task, self.problem, self.reference = task, problem, reference
        self.form, self.horizon, self.steps, self.brief = form, horizon, steps, brief
        self.world: World = reference.start.fork()
        self.seen: list[str] = []  # all answers to calls so far
        self.made: list[ToolCall] = []  # calls in this user turn
        self.steps_made = 0  # number of replies with calls in this user turn
        self.turn = 0  # index of the user turn
        self.turns = 0  # number of turns that the policy has taken
        self.fault = ""
        self.won = self.done = False

    @property
    def tools(self) -> Tools:
        """Returns the tools that the chat template shows; empty if the system message lists the functions instead."""
        return self.problem.tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        """Returns the user's first request.

        If the chat template does not show the functions, a system message lists the functions before the request.
        """
        user: Message = {"role": "user", "content": self.problem.turns[0].user}
        if templated(self.form):
            return [user]
        listed = "\n".join(map(signature, self.problem.tools))
        return [{"role": "system", "content": listed if self.brief else f"{listed}\n{HOW}"}, user]

    def step(self, action: str) -> Step:
        """Executes the tool calls in the policy's reply and returns the environment's answer.

        A reply without calls ends the user turn.

        Raises:
            RuntimeError: the episode is over.
        """
        check_open(self.task, self.done, self.turns)
        self.turns += 1
        calls = read_calls(action, self.form, self.problem.tools_at(self.turn)) or ()
        results: list[str] = []
        observation = ""
        if calls:
            results = [self.world.call(call) for call in calls]
            self.seen += results
            self.made += calls
            self.steps_made += 1
            observation = "\n".join(results)
            if self.problem.one_reply:
                self._next()
            elif self.steps_made > self.steps:
                self.fault, self.done = STOPPED, True
        else:
            observation = self._next()
        if self.turns >= self.horizon and not self.done:
            self.fault, self.done = STOPPED, True
        info = {"user_turn": self.turn, "fault": self.fault}
        return Step(observation, float(self.won), self.done, self.won, info, answered(results, self.form))

    def _next(self) -> str:
        """Checks this user turn. If the check passes, starts the next user turn.

        Returns the user's next message, or an empty text if the episode is over.
        """
        self.fault = self.reference.fault(self.turn, self.world, self.seen, bool(self.made))
        last = self.turn == len(self.problem.turns) - 1
        self.won = last and not self.fault
        self.done = last or bool(self.fault)
        if self.done:
            return ""
        self.turn += 1
        self.made, self.steps_made = [], 0
        return self.problem.turns[self.turn].user

    def fork(self) -> DialogueSession:
        """Returns an independent copy. This session and the copy share only objects that never change."""
        twin = copy.copy(self)
        twin.world, twin.seen, twin.made = self.world.fork(), self.seen[:], self.made[:]
        return twin

    def admissible(self) -> list[str]:
        """Returns an empty list: actions cannot be listed, because the arguments of tool calls are free values."""
        return []
