"""Reads from the installed reasoning-gym: data sets by name and settings, items by number, scores of answers.

Some of its scorers evaluate the answer as Python (``eval``, sympy's ``parse_expr``), and a policy wrote that answer. None of
these is ever called: ``OWN_SCORES`` stand in for some, and the other data sets of that kind are refused. So are data sets whose
scorer accepts nearly anything or works without a bound, and those whose items cannot be made again (as of reasoning-gym 0.1.25).
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import inspect
import io
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Any

from turnwise.envs.reasoning_gym.own_scores import OWN_SCORES
from turnwise.errors import InputError

INSTALL = "`make reasoning_gym` installs it (pip install -r requirements-reasoning-gym.txt)"
NUMBERS = 2**31 - 1  # items of a data set have numbers below this
LONGEST = 10_000  # characters of an answer that is scored
_EVALUATES = "its scorer evaluates the answer as Python"
_UNBOUNDED = "its scorer repeats a move as often as the answer says, without a bound"
_AGAIN = "its items cannot be made again one by one"
REFUSED: Mapping[str, str] = {
    "simple_integration": _EVALUATES,
    "intermediate_integration": _EVALUATES,
    "polynomial_multiplication": _EVALUATES,
    "puzzle24": "its scorer does not look at the numbers of the question, so that one answer wins everywhere",
    "game_of_life_halting": "its scorer accepts any answer",
    "coin_flip": "its scorer accepts 0 nearly everywhere",
    "propositional_logic": "its scorer accepts a premise of the question as the conclusion",
    "rubiks_cube": _UNBOUNDED,
    "rush_hour": _UNBOUNDED,
    "gsm_symbolic": "it prepares all of its items when it is opened, which takes the memory of this machine",
    "acre": _AGAIN,
    "codeio": _AGAIN,
    "list_functions": _AGAIN,
    "composite": "it is a mixture; name its data sets in env.tasks",
}
"""Data sets that cannot be played, and why."""
LETTERS = ("spell_backward", "figlet_font")
"""Data sets whose scorer counts letters in their places; what follows them costs nothing there, and scores 0 here."""
OWN_TEXT = ("basic_arithmetic", "bitwise_arithmetic", "number_sorting")
"""Data sets whose modules evaluate the package's own text alone."""
_EVALUATING = re.compile(r"(?<![\w.])(eval|exec)\(|\b(parse_expr|sympify)\(")


class MissingReasoningGymError(InputError):
    """reasoning-gym, or something that it imports, is not installed."""


@dataclass(frozen=True, slots=True)
class Item:
    """A question of a data set. ``answer`` is the package's own; None where the data set has none."""

    question: str
    answer: str | None
    entry: Mapping[str, Any] = field(repr=False)


def package() -> Any:
    """Returns the imported package.

    Raises:
        MissingReasoningGymError: it cannot be imported.
    """
    if find_spec("reasoning_gym") is None:
        raise MissingReasoningGymError(f"env=reasoning_gym needs reasoning-gym, not installed here; {INSTALL}")
    try:
        import reasoning_gym.factory
    except ImportError as error:
        raise MissingReasoningGymError(
            f"env=reasoning_gym: reasoning-gym cannot be imported ({error}); {INSTALL}"
        ) from error
    return reasoning_gym.factory


class Dataset:
    """One data set at given settings.

    Args:
        name: the package's name of it.
        settings: of its configuration; ``level`` stands for the settings of that level of its curriculum.
        key: of the configuration, for messages.

    Raises:
        InputError: there is no such data set or setting, a setting has a bad value, or it is one of ``REFUSED``.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], key: str = "tasks") -> None:
        known: Mapping[str, tuple[type, type]] = package().DATASETS
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            raise InputError(
                f"{key}.{name}: reasoning-gym has no such data set" + (f"; {', '.join(near)}?" if near else "")
            )
        made_by, configured_by = known[name]
        if reason := REFUSED.get(name) or _evaluates(name, made_by):
            raise InputError(f"{key}.{name}: cannot be played: {reason}; leave it out")
        self.name, self.settings = name, dict(settings)
        config = self._config(configured_by, f"{key}.{name}")
        try:
            self._made = made_by(config=replace(config, seed=0, size=NUMBERS))
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"{key}.{name}: {error or 'its settings contradict one another'}") from error

    def _config(self, configured_by: type, key: str) -> Any:
        settings = dict(self.settings)
        level = settings.pop("level", None)
        names = {each.name for each in fields(configured_by)} - {"seed", "size"}
        if unknown := sorted(settings.keys() - names):
            raise InputError(f"{key}.{unknown[0]}: no such setting; it has {', '.join(sorted(names))} and level")
        chosen = configured_by() if level is None else self._at(level, key)
        try:
            return replace(chosen, **settings)
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"{key}: {error}") from error

    def _at(self, level: Any, key: str) -> Any:
        """Returns the configuration of a level of the curriculum; attributes with fewer levels stand at their last."""
        if self.name not in package().CURRICULA:
            raise InputError(f"{key}.level: reasoning-gym has no levels of it; name its own settings")
        if not isinstance(level, int) or level < 0:
            raise InputError(f"{key}.level: a whole number from 0 on is needed, got {level!r}")
        curriculum = package().create_curriculum(self.name)
        for name, attribute in curriculum.attributes.items():
            curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
        return curriculum.generate_configuration()

    def item(self, number: int) -> Item:
        """Returns the item of that number, from 0 to ``NUMBERS``; the same number gives the same item."""
        entry = self._made[number]
        answer = entry["answer"]
        return Item(str(entry["question"]), None if answer is None else str(answer), entry)

    def score(self, item: Item, answer: str) -> float:
        """Returns the score of an answer, in [0, 1]: the package's, or that of ``OWN_SCORES``.

        An answer at which the scorer fails gets 0, and so does one that is scored above 1: some scorers add up by mistake.
        """
        if len(answer) > LONGEST or (self.name in LETTERS and len("".join(answer.split())) > len(item.answer or "")):
            return 0.0
        if self.name in OWN_SCORES:
            return OWN_SCORES[self.name](answer, item.entry)
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                score = float(self._made.score_answer(answer, copy.deepcopy(item.entry)))  # some scorers write into it
        except Exception:  # it could not read the answer
            return 0.0
        return max(0.0, score) if score <= 1 else 0.0  # a score that is no number is not below 1


def _evaluates(name: str, made_by: type) -> str:
    """Says that the module of a data set evaluates text and nobody has looked at whose; empty where it is known or does not."""
    if name in OWN_SCORES or name in OWN_TEXT:
        return ""
    source = inspect.getsource(inspect.getmodule(made_by) or made_by)
    return f"{_EVALUATES}, as far as its source tells" if _EVALUATING.search(source) else ""
