"""A live dialogue over tools."""

from __future__ import annotations

import copy

from turnwise.data.toolcalls.formats import Format
from turnwise.envs.dialogues.problem import DialogueProblem, World
from turnwise.envs.dialogues.score import STOPPED, Reference
from turnwise.envs.environment import Step, check_open
from turnwise.envs.tools import Tools, answered, read_calls, signature, templated
from turnwise.types import Message, Task, ToolCall

HOW = "Call a function as name(parameter=value), several as [f(a=1), g()]. Reply without a call when the request is served."


class DialogueSession:
    """See ``envs.environment.Session``. The policy makes calls until it replies without one; then the user's next turn comes.

    A reply that cannot be read ends the user's turn, as in BFCL. The episode is lost at the first user turn that fails the
    check, after more than ``steps`` replies with calls to one user turn, or at the horizon.
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
        self.seen: list[str] = []  # every answer so far
        self.made: list[ToolCall] = []  # calls to this user turn
        self.steps_made = 0  # replies with calls to this user turn
        self.turn = 0  # of the user
        self.turns = 0  # of the policy
        self.fault = ""
        self.won = self.done = False

    @property
    def tools(self) -> Tools:
        """Returns what the chat template shows; nothing where the opening lists the functions."""
        return self.problem.tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        """Returns the functions, where no chat template shows them, and the user's first request."""
        user: Message = {"role": "user", "content": self.problem.turns[0].user}
        if templated(self.form):
            return [user]
        listed = "\n".join(map(signature, self.problem.tools))
        return [{"role": "system", "content": listed if self.brief else f"{listed}\n{HOW}"}, user]

    def step(self, action: str) -> Step:
        """Makes the calls of a reply, or ends the user's turn where it has none.

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
        """Checks this user turn and goes on to the next one if it was served; returns what the user says."""
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
        """Returns an independent copy, sharing only what never changes."""
        twin = copy.copy(self)
        twin.world, twin.seen, twin.made = self.world.fork(), self.seen[:], self.made[:]
        return twin

    def admissible(self) -> list[str]:
        """Returns nothing: calls have values, and no list holds them all."""
        return []
