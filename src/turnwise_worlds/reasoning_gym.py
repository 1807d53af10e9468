"""``env=reasoning_gym``: generated questions of the package reasoning-gym (arXiv:2505.24760), which scores the answers.

Some scorers of the package evaluate an answer as Python (``eval``, sympy's ``parse_expr``). Their data sets are refused,
and so are the data sets in ``REFUSED`` (as of reasoning-gym 0.1.25).
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import json
import random
import re
import string
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from annotated_types import Interval
from pydantic import PositiveInt

from turnwise.data.toolcalls import ToolCallError, split_thinking
from turnwise.env import Session, Step, check_open, hashed_split
from turnwise.errors import InputError
from turnwise.types import Message, Task
from turnwise_worlds.scripted import Chances, Clumsy, Expert, LastTasks, ScriptedEnv

Settings = Mapping[str, Any]
EASY: Mapping[str, Settings] = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}}
NUMBERS = 2**31 - 1  # number of items of a data set; the items are numbered from 0
LONGEST = 10_000  # maximum length of an answer in characters; a longer answer scores 0
_MISSES = 2000  # number of consecutive items without a new question of the split after which a data set is used up
# data sets whose scorers accept constant answers or run without a limit, or whose items cannot be made again
REFUSED = (
    "puzzle24", "game_of_life_halting", "coin_flip", "propositional_logic", "rubiks_cube", "rush_hour", "gsm_symbolic",
    "acre", "codeio", "list_functions", "composite",
)  # fmt: skip
LETTERS = ("spell_backward", "figlet_font")  # their scorers ignore what follows the length of the right answer
OWN_TEXT = ("basic_arithmetic", "bitwise_arithmetic", "number_sorting")  # evaluate only text that the package wrote
_EVALUATING = re.compile(r"(?<![\w.])(eval|exec)\(|\b(parse_expr|sympify)\(")
HOW = "Think as long as you need, then put the final answer, and nothing else, between <answer> and </answer>."


def package() -> Any:
    if find_spec("reasoning_gym") is None:
        raise InputError("env=reasoning_gym needs reasoning-gym, which is not installed; `make reasoning_gym` does it")
    import reasoning_gym.factory

    return reasoning_gym.factory


def opened(name: str, settings: Settings) -> Any:
    """Opens a data set. The setting ``level`` selects a level of its curriculum, which gives the other settings."""
    known, place = package().DATASETS, f"env.tasks.{name}"
    if name not in known:
        raise InputError(f"{place}: reasoning-gym has no such data set")
    made_by, configured_by = known[name]
    source = inspect.getsource(inspect.getmodule(made_by) or made_by)
    if name in REFUSED or (name not in OWN_TEXT and _EVALUATING.search(source)):
        raise InputError(f"{place}: the scorer of this data set is not safe or not sound; leave the data set out")
    chosen = {key: value for key, value in settings.items() if key != "level"}
    try:
        config = configured_by()
        if (level := settings.get("level")) is not None:
            curriculum = package().create_curriculum(name)
            for attribute, values in curriculum.attributes.items():
                curriculum.set_attr_level(attribute, min(level, len(values.levels) - 1))
            config = curriculum.generate_configuration()
        return made_by(config=replace(config, **chosen, seed=0, size=NUMBERS))
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{place}: these settings cannot be used ({error})") from error


class ReasoningSession(Session):
    """One question. Each reply is an answer, whose score is the reward."""

    def __init__(self, task: Task, env: ReasoningGymEnv, entry: Mapping[str, Any]) -> None:
        self.task, self.env, self.entry = task, env, entry
        self.turns = 0
        self.done = self.won = False

    def opening(self) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": HOW}] if self.env.form == "tags" else []
        return [*system, {"role": "user", "content": str(self.entry["question"])}]

    def write(self, answer: object) -> str:
        return str(answer) if self.env.form == "bare" else f"<answer>{answer}</answer>"

    def score(self, action: str) -> float:
        try:
            answer = split_thinking(action)[1].strip()
        except ToolCallError:
            return 0.0
        if self.env.form == "tags":
            answer = next(reversed(re.findall(r"<answer>(.*?)</answer>", answer, re.DOTALL)), "").strip()
        name, letters = self.task.data["dataset"], len("".join(answer.split()))
        if not 0 < len(answer) <= LONGEST or (name in LETTERS and letters > len(self.entry["answer"] or "")):
            return 0.0
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # the entry is copied, because some scorers change it
                score = float(self.env.dataset(self.task).score_answer(answer, copy.deepcopy(self.entry)))
        except Exception:  # the scorer could not read the answer
            return 0.0
        return max(0.0, score) if score <= 1 else 0.0  # some scorers add up points by mistake; NaN scores 0 too

    def step(self, action: str) -> Step:
        check_open(self.task, self.done, self.turns)
        score = self.score(action)
        self.turns += 1
        self.won = score >= self.env.threshold
        self.done = self.won or self.turns >= self.env.horizon
        text = f"The score is {score:.2f}." + ("" if self.done else " Answer again.")
        return Step(text, score, self.done, self.won, {"score": score})


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """The clumsy expert's mistakes, which it never makes in the last turn."""

    slip: float = 0.25  # gives the answer with one letter or digit changed
    empty: float = 0.05  # gives a reply without an answer


class GoodExpert(Expert[ReasoningSession]):
    def best(self, session: ReasoningSession) -> str:
        return session.write(session.entry["answer"])


class ClumsyExpert(Clumsy[ReasoningSession], GoodExpert):
    def has_room(self, session: ReasoningSession) -> bool:
        return session.env.horizon - session.turns > 1

    def _slip(self, session: ReasoningSession) -> str | None:
        answer = str(session.entry["answer"])
        places = [i for i, c in enumerate(answer) if c in string.digits or c in string.ascii_letters]
        if not places:
            return None
        at = self.rng.choice(places)
        kind = string.digits if answer[at] in string.digits else string.ascii_lowercase
        other = self.rng.choice([c for c in kind if c != answer[at]])
        return session.write(answer[:at] + other + answer[at + 1 :])

    def _empty(self, session: ReasoningSession) -> str | None:
        return session.write("?")


class ReasoningGymEnv(ScriptedEnv[ReasoningSession]):
    """Questions of several data sets in turn (conf/env/reasoning_gym.yaml). A hash of a question decides its split."""

    name = "reasoning_gym"
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self,
        tasks: Mapping[str, Settings | None] | None = None,
        horizon: PositiveInt = 1,
        threshold: Annotated[float, Interval(gt=0, le=1)] = 1.0,
        reply: Literal["bare", "tags"] = "bare",
        kept: PositiveInt = 1024,
        mistakes: Mistakes | None = None,
    ) -> None:
        self.horizon, self.threshold, self.form = horizon, float(threshold), reply
        self.mistakes = mistakes or Mistakes()
        self._used = [(name, dict(given or {})) for name, given in (tasks or EASY).items()]
        self._datasets = {_place(*each): opened(*each) for each in self._used}
        self._entries = LastTasks(self._entry, kept)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        streams = [self._new(*each, split, seed) for each in self._used]
        return [next(streams[place % len(streams)]) for place in range(count)]

    def _new(self, name: str, settings: Settings, split: str, seed: int) -> Iterator[Task]:
        rng = random.Random(f"{self.name} {name} {seed}")
        seen: set[str] = set()
        misses = 0
        while misses < _MISSES:
            number = rng.randrange(NUMBERS)
            question = str(self._datasets[_place(name, settings)][number]["question"])
            misses += 1
            if question in seen or hashed_split(question) != split:
                continue
            misses = 0
            seen.add(question)
            data = {"dataset": name, "settings": settings, "number": number, "question": question}
            yield Task(self.name, f"{split}/{name}/{number}", split, data, name)
        raise InputError(
            f"env.tasks.{name}: only {len(seen)} questions of the split {split} were found at these settings; lower "
            "data.trajectories, states.count or eval.tasks, or choose harder settings"
        )

    def dataset(self, task: Task) -> Any:
        """Returns the data set of a task, which may come from a file; raises an ``InputError`` if this run has none."""
        place = _place(task.data.get("dataset"), task.data.get("settings") or {})
        if place not in self._datasets:
            raise InputError(f"task {task.id}: its data set and settings {place} must be in env.tasks")
        return self._datasets[place]

    def _entry(self, task: Task) -> Mapping[str, Any]:
        number = task.data.get("number")
        if not isinstance(number, int) or not 0 <= number < NUMBERS:
            raise ValueError(f"task {task.id}: number: must be from 0 to {NUMBERS - 1}, got {number!r}")
        entry: Mapping[str, Any] = self.dataset(task)[number]
        if str(entry["question"]) != task.data.get("question", str(entry["question"])):
            raise ValueError(
                f"task {task.id}: the installed version of reasoning-gym has another question under the number {number}"
            )
        return entry

    def begin(self, task: Task) -> ReasoningSession:
        return ReasoningSession(task, self, self._entries(task))

    def unknown(self, session: ReasoningSession) -> str:
        answer = session.entry["answer"]
        right = answer is not None and session.score(session.write(answer)) >= self.threshold
        return "" if right else "reasoning-gym gives no right answer"

    def accepts(self, session: ReasoningSession, action: str, expert: str) -> bool:
        return session.score(action) >= self.threshold


def _place(name: object, settings: Settings) -> str:
    return json.dumps([name, settings], sort_keys=True, default=str)
