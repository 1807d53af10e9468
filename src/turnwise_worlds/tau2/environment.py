"""``env=tau2``: customer service with tools and rules."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import Len
from pydantic import PositiveInt

from turnwise.data.toolcalls import Format, ToolCallError
from turnwise.env import Quality, first_tasks
from turnwise.types import Task, Trajectory
from turnwise_worlds.scripted_experts import LastTasks, ScriptedEnv
from turnwise_worlds.tau2.domains import DOMAINS, FREE, Domain, problem_of, root, splits
from turnwise_worlds.tau2.expert import clumsy_replies, good_replies
from turnwise_worlds.tau2.session import Tau2Reference, Tau2Session
from turnwise_worlds.tau2.user import EndpointUser, ScriptedUser, User
from turnwise_worlds.tau2.verifier import accepts_calls, accepts_message, still_due
from turnwise_worlds.tool_dialogues import Mistakes
from turnwise_worlds.tool_environment import played_trajectory

NAME = "tau2"


class Tau2Env(ScriptedEnv[Tau2Session]):
    """The base set of tau2-bench, with tools and databases of inspect-evals (conf/env/tau2.yaml)."""

    name = NAME
    mistakes: Mistakes

    def __init__(
        self,
        domains: Annotated[Sequence[Domain], Len(1)] = DOMAINS,
        free: bool = False,
        horizon: PositiveInt = 60,
        format: Format = "hermes",  # noqa: A002 - the configuration uses this name
        rules: bool = True,
        user: Literal["scripted", "endpoint"] = "scripted",
        patience: PositiveInt = 3,
        endpoint: EndpointUser | None = None,
        mistakes: Mistakes | None = None,
        kept: PositiveInt = 256,
    ) -> None:
        if user == "endpoint" and endpoint is None:
            raise ValueError("user: endpoint needs a model, but env.endpoint is null; set it, or set env.user=scripted")
        if mistakes is not None and mistakes.early:
            raise ValueError(
                "mistakes.early: must be 0, because tau2's expert does not make this mistake: an early goodbye ends "
                "the conversation"
            )
        root()  # raises an error with the install command if the package is missing, before the package is used
        self.domains, self.free, self.rules = tuple(dict.fromkeys(domains)), free, rules
        self.horizon, self.format = horizon, format
        self.user: User = endpoint if user == "endpoint" and endpoint is not None else ScriptedUser(patience)
        self.waits = not self.user.scripted  # replies to the user then wait for a model
        self.mistakes = mistakes or Mistakes()
        self._references = LastTasks(_reference, kept)

    @property
    def left_out(self) -> Mapping[str, tuple[str, ...]]:
        """Domain -> the tasks that count as solved if the agent does nothing."""
        return {domain: () if self.free else FREE[domain] for domain in self.domains}

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``train`` is the shipped split; the shipped test split belongs alternately to ``seen`` and ``unseen``."""
        names = [(domain, name) for domain in self.domains for name in self._names(domain, split)]
        chosen = first_tasks(names, count, f"split {split} of tau2 ({', '.join(self.domains)})", f"{seed}/{NAME}")
        return [
            Task(NAME, f"{domain}/{name}", split, {"domain": domain, "task": name}, domain) for domain, name in chosen
        ]

    def _names(self, domain: str, split: str) -> list[str]:
        shipped = splits(domain)["train" if split == "train" else "test"]
        names = [name for name in shipped if name not in self.left_out[domain]]
        return names if split == "train" else names[split == "unseen" :: 2]

    def begin(self, task: Task) -> Tau2Session:
        reference = self._references(task)
        talk = None if reference.problem.solo else self.user.begin(reference.problem.scenario)
        return Tau2Session(task, reference, self.user, talk, self.format, self.horizon, self.rules)

    def play(self, session: Tau2Session, quality: Quality, seed: int) -> Trajectory:
        rng = random.Random(f"{seed}/{session.task.id}")
        replies = good_replies(session) if quality == "good" else clumsy_replies(session, rng, self.mistakes)
        return played_trajectory(session, replies, self.format, quality, seed)

    def accepts(self, session: Tau2Session, action: str, expert: str) -> bool:
        if session.done:
            return False
        try:
            reply = session.read(action)
        except ToolCallError:
            return False
        if session.due is None:
            session.due = tuple(still_due(session))
        if not session.due:
            return False
        due = session.due[0]
        if not reply.calls:
            return accepts_message(session, reply.content, expert, due)
        if session.talk is None and reply.calls[0].name == "done":
            return not session.reference.fault(session.world, session.made, ())
        return accepts_calls(session, reply.calls, due)


def _reference(task: Task) -> Tau2Reference:
    return Tau2Reference.of(problem_of(str(task.data.get("domain")), str(task.data.get("task"))))
