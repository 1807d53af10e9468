"""``env=reasoning_gym``: generated tasks of the package reasoning-gym (arXiv:2505.24760)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from turnwise.envs.environment import check_horizon, hashed_split
from turnwise.envs.reasoning_gym.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.reasoning_gym.package import NUMBERS, Dataset, Item
from turnwise.envs.reasoning_gym.session import Form, ReasoningSession
from turnwise.envs.scripted import LastTasks, ScriptedEnv
from turnwise.errors import InputError
from turnwise.types import Task

NAME = "reasoning_gym"
EASY: Mapping[str, Mapping[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
}
_MISSES = 2000  # number of consecutive items without a new question of the split after which a data set is used up


class ReasoningGymEnv(ScriptedEnv[ReasoningSession]):
    """An environment that asks questions from several data sets in turn.

    It implements ``turnwise.envs.environment.Environment``. A hash of a question's text decides its split, so no
    question occurs in two splits.

    Args:
        tasks: name of a data set -> its settings. The setting ``level`` selects a level of the data set's curriculum.
            None means ``EASY``.
        unseen: name of a data set of the split ``unseen`` -> its settings; None means ``tasks``.
        horizon: maximum number of answers to a question.
        threshold: an answer wins the episode if its score is at least ``threshold``.
        reply: how a reply contains the answer, ``bare`` or ``tags``
            (:class:`~turnwise.envs.reasoning_gym.session.ReasoningSession`).
        kept: number of questions that are kept in memory.
        mistakes: probabilities of the mistakes of the clumsy scripted expert.

    Raises:
        MissingReasoningGymError: the package is not installed; the message says how to install it.
        InputError: a data set or setting cannot be used.
        ValueError: a number is out of its range.
    """

    name = NAME
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, Any] | None] | None = None,
        unseen: Mapping[str, Mapping[str, Any] | None] | None = None,
        horizon: int = 1,
        threshold: float = 1.0,
        reply: Form = "bare",
        kept: int = 1024,
        mistakes: Mistakes | None = None,
    ) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold: must be in (0, 1], because scores are in [0, 1], got {threshold}")
        if reply not in get_args(Form):
            raise ValueError(f"reply: must be {' or '.join(get_args(Form))}, got {reply!r}")
        if kept < 1:
            raise ValueError(f"kept must be at least 1, got {kept}")
        tasks = EASY if tasks is None else tasks
        if not tasks or unseen == {}:
            raise ValueError(f"{'unseen' if tasks else 'tasks'}: name at least one data set of reasoning-gym")
        self.horizon, self.threshold, self.form = check_horizon(horizon), float(threshold), reply
        self.mistakes = mistakes or Mistakes()
        self._datasets: dict[str, Dataset] = {}
        self._train = [self._dataset(name, given or {}, "tasks") for name, given in tasks.items()]
        self._unseen = [self._dataset(name, given or {}, "unseen") for name, given in (unseen or tasks).items()]
        self._items = LastTasks(self._item, kept)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        datasets = self._unseen if split == "unseen" else self._train
        streams = [self._new(dataset, split, seed) for dataset in datasets]
        return [next(streams[place % len(streams)]) for place in range(count)]

    def _new(self, dataset: Dataset, split: str, seed: int) -> Iterator[Task]:
        """Yields tasks of a split with different questions of the data set.

        Raises:
            InputError: no further question of the split was found in the data set.
        """
        rng = random.Random(f"{NAME} {dataset.name} {seed}")
        seen: set[str] = set()
        misses = 0
        while misses < _MISSES:
            number = rng.randrange(NUMBERS)
            question = dataset.item(number).question
            misses += 1
            if question in seen or hashed_split(question) != split:
                continue
            misses = 0
            seen.add(question)
            data = {"dataset": dataset.name, "settings": dataset.settings, "number": number, "question": question}
            yield Task(NAME, f"{split}/{dataset.name}/{number}", split, data, dataset.name)
        raise InputError(
            f"env.tasks.{dataset.name}: only {len(seen)} questions of the split {split} were found at these settings; "
            "lower data.trajectories, states.count or eval.tasks, or choose harder settings"
        )

    def begin(self, task: Task) -> ReasoningSession:
        """Opens an episode of the task.

        Raises:
            ValueError: the number in the task is invalid, or the installed version of reasoning-gym has another
                question under this number.
        """
        item = self._items(task)
        return ReasoningSession(task, self._of(task), item, self.horizon, self.threshold, self.form)

    def _of(self, task: Task) -> Dataset:
        """Returns the data set of a task, which may come from a file.

        Raises:
            InputError: this environment has no data set with the name and settings that the task names.
        """
        name, settings = task.data.get("dataset"), task.data.get("settings") or {}
        if (place := _place(name, settings)) not in self._datasets:
            raise InputError(
                f"task {task.id}: the task comes from the data set and settings {place}, which do not belong to this "
                "run; add them to env.tasks or env.unseen"
            )
        return self._datasets[place]

    def _item(self, task: Task) -> Item:
        number = task.data.get("number")
        if not isinstance(number, int) or not 0 <= number < NUMBERS:
            raise ValueError(f"task {task.id}: number: must be from 0 to {NUMBERS - 1}, got {number!r}")
        item = self._of(task).item(number)
        if item.question != task.data.get("question", item.question):
            raise ValueError(
                f"task {task.id}: the installed version of reasoning-gym has another question under the task's number "
                f"{number}; install the version with which the task was made, or generate the task again"
            )
        return item

    def _dataset(self, name: str, settings: Mapping[str, Any], key: str) -> Dataset:
        place = _place(name, dict(settings))
        if place not in self._datasets:
            self._datasets[place] = Dataset(name, settings, key)
        return self._datasets[place]

    def unknown(self, session: ReasoningSession) -> str:
        if session.item.answer is None:
            return "reasoning-gym gives no answer"
        score = session.score(session.write(session.item.answer))
        return "" if score >= self.threshold else f"reasoning-gym gives an answer that scores {score:.2f}"

    def accepts(self, session: ReasoningSession, action: str, expert: str) -> bool:
        """Returns whether the score of the policy's answer is at least the threshold. ``expert`` is not used."""
        return session.score(action) >= self.threshold


def _place(name: Any, settings: Any) -> str:
    """Returns a text that identifies a data set with given settings."""
    return json.dumps([name, settings], sort_keys=True, default=str)
