"""Plays held-out tasks and out-of-domain suites with a policy, and draws tasks that no earlier evaluation has shown.

The user chooses settings while looking at results on the tasks of seed 0, so a final evaluation needs other tasks.
Another seed alone does not give other tasks if an environment has few of them: with ``env=search``, four in ten
questions of one seed are also questions of another seed. Fresh tasks and items, drawn at a seed other than 0, are not
among those of seed 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Engine, Sampling
from turnwise.errors import InputError
from turnwise.evaluation.base_divergence import Divergence
from turnwise.evaluation.skills import SKILLS, SkillItem, items
from turnwise.evaluation.stats import Reply
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.methods.states import task_starts
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player, Tally, seed_of
from turnwise.types import Message, RolloutTree, Task

# -- fresh tasks and items ---------------------------------------------------------------------------------------------


T = TypeVar("T")


def fresh_tasks(environment: Any, split: str, count: int, seed: int) -> Sequence[Task]:
    """Tasks of a split, drawn at a seed. At a seed other than 0, none has the data of one of the ``count`` tasks of
    seed 0; an InputError says if too few are left.
    """
    return _fresh_suite(lambda most, at: environment.tasks(split, most, at), _content, count, seed, f"{split} tasks")


def fresh_items(skill: str, count: int, seed: int) -> list[SkillItem]:
    """Test items of a toy skill, as :func:`fresh_tasks`."""
    return _fresh_suite(
        lambda most, at: items(skill, "test", most, at), lambda item: item.prompt, count, seed, f"{skill} items"
    )


def _content(task: Task) -> str:
    return json.dumps([task.env, task.data], sort_keys=True, default=str)


def _fresh_suite(
    draw: Callable[[int, int], Sequence[T]], key: Callable[[T], Hashable], count: int, seed: int, what: str
) -> list[T]:
    seen = list(draw(count, 0))
    if seed == 0:
        return seen
    known = {key(one) for one in seen}
    try:
        # twice as many are drawn, because all tasks of seed 0 may be drawn again
        fresh = [one for one in draw(2 * count, seed) if key(one) not in known]
    except ValueError as error:
        raise _too_few(what, count, seed, str(error)) from error
    if len(fresh) < count:
        raise _too_few(what, count, seed, f"{len(fresh)} are left")
    return fresh[:count]


def _too_few(what: str, count: int, seed: int, why: str) -> InputError:
    return InputError(
        f"eval.seed={seed}: too few {what} differ from those of eval.seed=0: {count} are needed ({why}); lower "
        "eval.tasks or eval.items, or leave eval.seed at 0"
    )


# -- suites ------------------------------------------------------------------------------------------------------------


OnDone = Callable[[int], None] | None
"""A callback that gets the number of episodes or answers that have just ended."""

TOGETHER = 64  # number of episodes that an engine in this process samples together, which limits its memory


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode that the policy played on a held-out task."""

    split: str
    task: str
    mode: str  # greedy or sampled
    attempt: int
    success: float  # whether the episode was won, or the score in [0, 1] that the environment reports in its place
    turns: int
    messages: list[Message]
    subset: str = ""  # the subset of the benchmark to which the task belongs


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy's greedy answer to one item of an out-of-domain suite, with its ``score`` in [0, 1]."""

    suite: str
    item: str
    score: float
    prompt: str
    answer: str
    reference: str


@dataclass(slots=True)
class Evaluation:
    """All results of evaluating one policy: its episodes, answers to toy skills, and replies in held-out dialogues."""

    episodes: list[Episode] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)  # results on held-out dialogues without an environment
    general: list[Divergence] = field(default_factory=list)  # from the base model, on general questions

    def success(self, mode: str, split: str | None = None) -> dict[str, list[float]]:
        """Task -> outcomes of its episodes in a decoding mode (greedy or sampled)."""
        return _outcomes(e for e in self.episodes if e.mode == mode and split in (None, e.split))

    def by_subset(self, mode: str) -> dict[str, dict[str, list[float]]]:
        """Subset of the benchmark -> task -> outcomes; empty if tasks have no subset."""
        names = sorted({episode.subset for episode in self.episodes} - {""})
        outcomes_of = {
            name: _outcomes(e for e in self.episodes if e.mode == mode and e.subset == name) for name in names
        }
        return {name: outcomes for name, outcomes in outcomes_of.items() if outcomes}

    def skills(self) -> dict[str, dict[str, list[float]]]:
        scores: dict[str, dict[str, list[float]]] = {}
        for answer in self.answers:
            scores.setdefault(answer.suite, {})[answer.item] = [answer.score]
        return scores


def play_tasks(
    player: Player,
    opening: Openings,
    tasks: Sequence[Task],
    attempts: int,
    mode: str,
    key: object,
    on_done: OnDone = None,
) -> list[Episode]:
    """Runs ``attempts`` episodes of each held-out task to their end. Returns the episodes whose environment did not fail.
    ``player`` must have the sampling settings of ``mode`` and no limit on turns. With the same ``key``, two policies use
    the same random numbers.
    """
    episodes = []
    served = getattr(player.engine, "served", False)
    step = max(1, at_once(served, len(tasks) * attempts) // attempts)
    done = None if on_done is None else lambda tree: on_done(attempts)
    for start in range(0, len(tasks), step):
        part = tasks[start : start + step]
        opening.read(part)
        states = task_starts(part, lambda task: opening(task)[1])
        for tree, task in zip(player.play(states, Uniform(attempts), Never(), key, on_tree=done), part, strict=True):
            episodes += _episodes_of_suite(tree, task, mode, list(opening(task)[0]))
        player.forget()
    return episodes


def at_once(served: bool, episodes: int) -> int:
    """How many episodes an evaluation plays at once. Servers decode all together, and would wait for the longest
    episode of each part.
    """
    return episodes if served else TOGETHER


def _outcomes(episodes: Iterable[Episode]) -> dict[str, list[float]]:
    outcomes: dict[str, list[float]] = {}
    for episode in episodes:
        outcomes.setdefault(episode.task, []).append(float(episode.success))
    return outcomes


def _episodes_of_suite(tree: RolloutTree, task: Task, mode: str, messages: list[Message]) -> list[Episode]:
    """Without those whose environment failed, because the policy did not cause the failure."""
    episodes = []
    for attempt, leaf in enumerate(tree.valid_leaves()):
        path = [tree.turns[i] for i in tree.path(leaf)]
        conversation = list(messages)
        for turn in path:
            conversation.append({"role": "assistant", "content": turn.text})
            conversation.append({"role": turn.info.get("role", "user"), "content": turn.observation})
        won = float(path[-1].info.get("score", path[-1].info.get("won", False)))
        subset = re.sub(r"[^\w-]+", "_", task.subset)  # made safe for use in names of metrics
        episodes.append(Episode(task.split, task.id, mode, attempt, won, len(path), conversation, subset))
    return episodes


def answer_skills(
    engine: Engine,
    chat: ChatTokens,
    count: int,
    seed: int,
    suites: Sequence[str] | None = None,
    on_done: OnDone = None,
) -> list[Answer]:
    """Greedy answers to ``count`` test items of each toy skill, drawn at ``seed``."""
    answers = []
    greedy = Sampling(temperature=0, max_tokens=24)
    for name in SKILLS if suites is None else suites:
        questions = fresh_items(name, count, seed)
        nodes = [engine.open(chat.prompt(question.messages)) for question in questions]
        samples = engine.sample(nodes, greedy, [seed_of(name, i) for i in range(len(nodes))])
        engine.close(nodes)
        for i, (question, sample) in enumerate(zip(questions, samples, strict=True)):
            text = chat.decode(sample.ids)
            score = SKILLS[name].score(text, question)
            answers.append(Answer(name, f"{name}/{i}", score, question.prompt, text, question.reference))
        if on_done is not None:
            on_done(len(questions))
    return answers


def play_suite(
    player: Player, name: str, environment: Any, count: int, seed: int, on_done: OnDone = None
) -> list[Answer]:
    """Plays ``count`` held-out tasks, drawn at ``seed``, of an environment that the run does not train on, once each and
    with greedy decoding. Returns an answer with the outcome of each. ``name`` is that of the suite in reports; the
    settings of ``player`` are not changed.
    """
    tasks = fresh_tasks(environment, "seen", count, seed)
    opening = Openings(environment, player.chat, player.environment_threads, player.environment_seconds)
    greedy = Sampling(temperature=0, max_tokens=player.sampling.max_tokens)
    aside = replace(player, environment=environment, sampling=greedy, max_turns=None, tally=Tally())
    answers = []
    for episode in play_tasks(aside, opening, tasks, 1, "greedy", name, on_done):
        last = next(m["content"] for m in reversed(episode.messages) if m["role"] == "assistant")
        prompt = str(episode.messages[0]["content"])
        answers.append(Answer(name, f"{name}/{episode.task}", float(episode.success), prompt, str(last), ""))
    return answers


def repeat_rate(texts: Sequence[str]) -> float:
    """The share of actions that repeat an earlier action of the episode, which is high if the policy is caught in a
    loop.
    """
    return 1 - len(set(texts)) / len(texts) if texts else 0.0
