"""A running episode of ``env=tau2``: the policy or a scripted expert talks to a user or works on a ticket."""

from __future__ import annotations

import copy

from turnwise.data.toolcalls import PARSERS, Format, Reply, ToolCallError
from turnwise.envs.calls import refusal
from turnwise.envs.environment import Step, check_open
from turnwise.envs.tau2.end_check import UNFINISHED, Reference
from turnwise.envs.tau2.package import policy
from turnwise.envs.tau2.problem import DONE, TRANSFER, Gold
from turnwise.envs.tau2.user import Talk, User
from turnwise.envs.tau2.world import World
from turnwise.envs.tool_messages import Tools, answered, opened, templated
from turnwise.types import Message, Task, ToolCall

ROLE = (
    "You work in the customer service of a company and talk to a customer. Keep to the policy below. In a reply you either call "
    "tools or write to the customer, never both; the customer sees nothing of your calls and their answers."
)
SOLO_ROLE = (
    "You work in the customer service of a company and are given a ticket. Keep to the policy below. You cannot talk to the "
    "customer: solve the ticket by calling tools, those of the customer's phone among them, and call done alone at the end."
)


class Tau2Session:
    """A running episode of ``env=tau2``. It implements ``turnwise.envs.environment.Session``.

    A reply of the agent either makes tool calls or is a message to the user. The episode ends when the user ends the
    conversation or, in solo mode, when the agent calls ``done``. After ``horizon`` turns, an episode ends and counts as
    lost, as in the benchmark. The reward is 0 or 1 and comes at the end.
    """

    __slots__ = (
        "done", "due", "fault", "form", "horizon", "made", "reference", "rules", "said", "shown", "talk", "task", "turns", "user",
        "won", "world",
    )  # fmt: skip

    def __init__(
        self, task: Task, reference: Reference, user: User, talk: Talk | None, form: Format, horizon: int, rules: bool
    ) -> None:
        self.task, self.reference, self.user = task, reference, user
        self.form, self.horizon, self.rules = form, horizon, rules
        self.world: World = reference.problem.start.fork()
        self.talk = talk  # None in solo mode
        self.made: tuple[ToolCall, ...] = ()
        self.said: tuple[str, ...] = ()  # the agent's messages to the user so far
        # all texts that the agent has read so far
        self.shown: tuple[str, ...] = (talk.last if talk else reference.problem.ticket,)
        # the calls that the verifier's function ``still_due`` found for this turn; None until they are computed
        self.due: tuple[list[tuple[Gold, bool]], ...] | None = None
        self.turns = 0
        self.fault = ""
        self.won = self.done = False

    @property
    def tools(self) -> Tools:
        """Returns the tools that the chat template shows; empty if the system message lists the tools."""
        return self.reference.problem.tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        """Returns the system message, followed by the user's first message or the ticket.

        If the chat template does not show the tools, the system message lists the tools.
        """
        problem = self.reference.problem
        system = [SOLO_ROLE if problem.solo else ROLE]
        if self.rules:
            system.append(f"<policy>\n{policy(problem.domain)}\n</policy>")
        user = self.shown[0] if not problem.solo else f"<ticket>\n{problem.ticket}\n</ticket>"
        return opened("\n\n".join(system), problem.tools, self.form, user)

    def read(self, action: str) -> Reply:
        """Parses a reply of the agent into its text and its tool calls.

        Raises:
            ToolCallError: the reply cannot be parsed or is empty. In solo mode also: the reply has no call, or ``done``
                has arguments or comes with other calls.
        """
        reply = PARSERS[self.form](action, self.reference.problem.tools)
        if not (reply.calls or reply.content):
            raise ToolCallError("the reply is empty")
        if self.talk is None:
            ends = [call for call in reply.calls if call.name == "done"]
            if not reply.calls:
                raise ToolCallError("nobody reads this; call a tool, or done at the end")
            if ends and (len(reply.calls) > 1 or ends[0].arguments):
                raise ToolCallError("call done alone and without arguments")
        return reply

    def step(self, action: str) -> Step:
        """Makes the tool calls in a reply, or sends its text to the user. Returns the answers of the tools or the user.

        Raises:
            RuntimeError: the episode is over.
            EnvironmentFault: the databases or the user failed.
        """
        check_open(self.task, self.done, self.turns)
        self.due = None
        results: list[str] = []
        observation = ""
        try:
            reply = self.read(action)
        except ToolCallError as error:
            results = [refusal(error)]
        else:
            if self.talk is None and reply.calls[0].name == "done":
                self._end()
            elif reply.calls:
                results = [self.world.call(call) for call in reply.calls]
                self.made += reply.calls
            else:
                observation = self._say(reply.content)
        observation = "\n".join(results) if results else observation
        self.turns += 1
        self.shown += (observation,)
        if self.turns >= self.horizon and not self.done:
            self.fault, self.done = UNFINISHED, True
        info = {"domain": self.reference.problem.domain, "fault": self.fault}
        return Step(observation, float(self.won), self.done, self.won, info, answered(results, self.form))

    def _say(self, text: str) -> str:
        assert self.talk is not None  # in solo mode ``read`` refuses replies without calls
        self.said += (text,)
        satisfied = not self.reference.fault(self.world, self.made, self.said)
        transferred = any(call.name == TRANSFER for call in self.made)
        self.talk = self.user.reply(self.talk, text, transferred, satisfied)
        if self.talk.ended:
            self._end()
        return self.talk.last

    def _end(self) -> None:
        self.fault = self.reference.fault(self.world, self.made, self.said)
        self.done, self.won = True, not self.fault

    def fork(self) -> Tau2Session:
        """Returns an independent copy of the session with its own databases."""
        twin = copy.copy(self)
        twin.world = self.world.fork()
        return twin

    def admissible(self) -> list[str]:
        """Returns an empty list, because the arguments of tool calls are free values."""
        return []


ENDING = ToolCall(str(DONE["function"]["name"]), {})
