"""``env=tau2``: customer service of an airline, a shop and a phone company, as in tau2-bench (arXiv:2506.07982)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

from turnwise.envs.caches import LastTasks
from turnwise.envs.dialogues import Mistakes
from turnwise.envs.environment import Quality, check_horizon, first_tasks
from turnwise.envs.experts import played
from turnwise.envs.scripted_environment import ScriptedEnv
from turnwise.envs.tau2 import experts, verifier
from turnwise.envs.tau2.end_check import Reference
from turnwise.envs.tau2.endpoint_user import EndpointUser
from turnwise.envs.tau2.package import DOMAINS, FREE, root, splits
from turnwise.envs.tau2.problem import problem_of
from turnwise.envs.tau2.session import Tau2Session
from turnwise.envs.tau2.user import ScriptedUser, User
from turnwise.envs.tool_messages import check_format
from turnwise.types import Task, Trajectory

NAME = "tau2"


class Tau2Env(ScriptedEnv[Tau2Session]):
    """The environment of tau2-bench. It implements ``turnwise.envs.environment.Environment``.

    The tasks are the benchmark's base set. Its tools and databases come from the package inspect-evals.

    Args:
        domains: the domains to use, out of ``airline``, ``retail`` and ``telecom``. In ``telecom`` the policy works
            without a user (solo mode): it gets a ticket.
        free: whether to keep the tasks that count as solved if the agent does nothing.
        horizon: maximum number of turns of an episode.
        format: the format in which the policy writes tool calls.
        rules: whether the system message contains the company's rules, as in the benchmark.
        user: how the user is simulated: ``scripted`` by rules, or ``endpoint`` by a model.
        patience: number of consecutive messages of the agent without a new fact in the answer after which the scripted
            user ends the conversation.
        endpoint: the model that simulates the user.
        mistakes: probabilities of the mistakes of the clumsy scripted expert.
        kept: number of tasks whose start states and goal states are kept in memory.

    Raises:
        MissingTau2Error: the package is not installed; the message says how to install it.
        ValueError: a number is below 1, a domain, format or user is unknown, or ``mistakes.early`` is above 0.
    """

    name = NAME
    mistakes: Mistakes

    def __init__(
        self,
        domains: Sequence[str] = DOMAINS,
        free: bool = False,
        horizon: int = 60,
        format: str = "hermes",  # noqa: A002 - the configuration uses this name
        rules: bool = True,
        user: Literal["scripted", "endpoint"] = "scripted",
        patience: int = 3,
        endpoint: EndpointUser | None = None,
        mistakes: Mistakes | None = None,
        kept: int = 256,
    ) -> None:
        if not domains or set(domains) - set(DOMAINS):
            raise ValueError(f"domains: name one or more of {', '.join(DOMAINS)}, got {list(domains)}")
        if user not in ("scripted", "endpoint"):
            raise ValueError(f"user: must be scripted or endpoint, got {user!r}")
        if user == "endpoint" and endpoint is None:
            raise ValueError("user: endpoint needs a model, but env.endpoint is null; set it, or set env.user=scripted")
        if kept < 1:
            raise ValueError(f"kept must be at least 1, got {kept}")
        if mistakes is not None and mistakes.early:
            raise ValueError(
                "mistakes.early: must be 0, because tau2's expert does not make this mistake: an early goodbye ends "
                "the conversation"
            )
        root()  # raises an error with the install command if the package is missing, before the package is used
        self.domains, self.free, self.rules = tuple(dict.fromkeys(domains)), free, rules
        self.horizon = check_horizon(horizon)
        self.format = check_format(format)
        self.user: User = endpoint if user == "endpoint" and endpoint is not None else ScriptedUser(patience)
        self.waits = not self.user.scripted  # replies to the user then wait for a model
        self.mistakes = mistakes or Mistakes()
        self._references = LastTasks(_reference, kept)

    @property
    def left_out(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the tasks that count as solved if the agent does nothing and are left out: domain -> names."""
        return {domain: () if self.free else FREE[domain] for domain in self.domains}

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Returns ``count`` tasks of a split, in an order that depends on the seed.

        ``train`` is the shipped training split. The shipped test split is divided alternately between ``seen`` and
        ``unseen``.
        """
        found = [(domain, name) for domain in self.domains for name in self._names(domain, split)]
        random.Random(f"{seed}/{NAME}").shuffle(found)
        chosen = first_tasks(found, count, f"split {split} of tau2 ({', '.join(self.domains)})")
        return [Task(NAME, f"{domain}/{name}", split, {"domain": domain, "task": name}) for domain, name in chosen]

    def _names(self, domain: str, split: str) -> list[str]:
        shipped = splits(domain)["train" if split == "train" else "test"]
        kept = [name for name in shipped if name not in self.left_out[domain]]
        return kept if split == "train" else kept[split == "unseen" :: 2]

    def begin(self, task: Task) -> Tau2Session:
        reference = self._references(task)
        talk = None if reference.problem.solo else self.user.begin(reference.problem.scenario)
        return Tau2Session(task, reference, self.user, talk, self.format, self.horizon, self.rules)

    def play(self, session: Tau2Session, quality: Quality, seed: int) -> Trajectory:
        rng = random.Random(f"{seed}/{session.task.id}")
        replies = experts.good(session) if quality == "good" else experts.clumsy(session, rng, self.mistakes)
        return played(session, replies, self.format, quality, seed)

    def accepts(self, session: Tau2Session, action: str, expert: str) -> bool:
        return verifier.accepts(session, action, expert)


def _reference(task: Task) -> Reference:
    return Reference.of(problem_of(str(task.data.get("domain")), str(task.data.get("task"))))


def by_domain(success: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the success rate in each domain, and ``overall``, the unweighted mean of these rates, as the benchmark
    does.

    Args:
        success: name of a task -> the outcomes of its episodes, each 0 or 1 (``Evaluation.success``). The outcomes of
            each task are averaged first, then the tasks of a domain.

    Raises:
        ValueError: there are no tasks, a task belongs to none of tau2's domains, or a task has no outcomes.
    """
    found: dict[str, list[float]] = {}
    for name, outcomes in success.items():
        domain = name.partition("/")[0]
        if domain not in DOMAINS:
            raise ValueError(f"{name!r} is not a task of tau2; a task's id begins with one of {', '.join(DOMAINS)}")
        found.setdefault(domain, []).append(fmean(outcomes))
    if not found:
        raise ValueError("no task of tau2 was played")
    means = {domain: fmean(found[domain]) for domain in DOMAINS if domain in found}
    return {**means, "overall": fmean(means.values())}
