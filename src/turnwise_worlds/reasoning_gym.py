"""``env=reasoning_gym``: generated questions of the package reasoning-gym (arXiv:2505.24760), which scores the answers.

Some scorers of the package evaluate an answer as Python (``eval``, sympy's ``parse_expr``). Their data sets are refused,
and so are the data sets in ``REFUSED`` (as of reasoning-gym 0.1.25).
"""

from __future__ import annotations

import copy
import inspect
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from annotated_types import Interval
from pydantic import PositiveInt

from turnwise.data.toolcalls import ToolCallError, split_thinking
from turnwise.env import CountedSession, Quality, Step, hashed_split
from turnwise.errors import InputError
from turnwise.types import Message, Task
from turnwise_worlds.scripted_experts import Chances, LastTasks, ScriptedEnv

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


def open_data_set(name: str, settings: Settings) -> Any:
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


class ReasoningSession(CountedSession):
    """One question. Each reply is an answer, whose score is the reward."""

    def __init__(self, task: Task, env: ReasoningGymEnv, entry: Mapping[str, Any]) -> None:
        self.task, self.env, self.entry, self.horizon = task, env, entry, env.horizon

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
        try:  # the entry is copied, because some scorers change it
            score = float(self.env.datasets[name].score_answer(answer, copy.deepcopy(self.entry)))
        except Exception:  # the scorer could not read the answer
            return 0.0
        return max(0.0, score) if score <= 1 else 0.0  # some scorers add up points by mistake; NaN scores 0 too

    def answer(self, action: str) -> Step:
        score = self.score(action)
        won = score >= self.env.threshold
        text = f"The score is {score:.2f}." + ("" if won or self.turns + 1 == self.horizon else " Answer again.")
        return Step(text, score, won, won, {"score": score})


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    slip: float = 0.25  # a digit too many after the answer
    empty: float = 0.05  # a reply without an answer


class ReasoningGymEnv(ScriptedEnv[ReasoningSession]):
    """Questions of several data sets in turn (conf/env/reasoning_gym.yaml). A hash of a question decides its split."""

    name = "reasoning_gym"

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
        self._settings = {name: dict(options or {}) for name, options in (tasks or EASY).items()}
        self.datasets = {name: open_data_set(name, settings) for name, settings in self._settings.items()}
        self._entries = LastTasks(self._entry, kept)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        streams = [self._new(name, split, seed) for name in self.datasets]
        return [next(streams[place % len(streams)]) for place in range(count)]

    def _new(self, name: str, split: str, seed: int) -> Iterator[Task]:
        rng = random.Random(f"{self.name} {name} {seed}")
        seen: set[str] = set()
        misses = 0
        while misses < _MISSES:
            number = rng.randrange(NUMBERS)
            question = str(self.datasets[name][number]["question"])
            misses += 1
            if question in seen or hashed_split(question) != split:
                continue
            misses = 0
            seen.add(question)
            data = {"dataset": name, "settings": self._settings[name], "number": number, "question": question}
            yield Task(self.name, f"{split}/{name}/{number}", split, data, name)
        raise InputError(
            f"env.tasks.{name}: only {len(seen)} questions of the split {split} were found at these settings; lower "
            "data.trajectories, states.count or eval.tasks, or choose harder settings"
        )

    def _entry(self, task: Task) -> Mapping[str, Any]:
        name, settings, number, question = (task.data.get(key) for key in ("dataset", "settings", "number", "question"))
        if name not in self.datasets or settings != self._settings[name] or not isinstance(number, int):
            raise InputError(f"task {task.id}: its data set {name!r} must be in env.tasks with the task's settings")
        entry: Mapping[str, Any] = self.datasets[name][number]
        if question not in (None, entry["question"]):
            raise InputError(
                f"task {task.id}: the installed version of reasoning-gym has another question under the number {number}"
            )
        return entry

    def begin(self, task: Task) -> ReasoningSession:
        return ReasoningSession(task, self, self._entries(task))

    def unknown(self, session: ReasoningSession) -> str:
        answer = session.entry["answer"]
        right = answer is not None and session.score(session.write(answer)) >= self.threshold
        return "" if right else "reasoning-gym gives no right answer"

    def actor(self, session: ReasoningSession, quality: Quality, seed: int) -> Callable[[], str]:
        """The good expert gives the package's answer. The clumsy one errs before some turns, but never in the last one."""
        rng, answer = random.Random(f"{self.name} expert {seed} {session.task.id}"), session.entry["answer"]

        def act() -> str:
            errs = quality == "clumsy" and session.turns + 1 < self.horizon
            drawn = self.mistakes.drawn(rng.random()) if errs else None
            return session.write({"slip": f"{answer}{rng.randrange(10)}", "empty": "?"}.get(drawn or "", answer))

        return act

    def accepts(self, session: ReasoningSession, action: str, expert: str) -> bool:
        return session.score(action) >= self.threshold
