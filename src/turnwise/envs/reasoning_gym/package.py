"""Uses the installed package reasoning-gym: opens its data sets, generates their items, and scores answers.

Some scorers of the package evaluate the policy's answer as Python (``eval``, sympy's ``parse_expr``), which is unsafe.
``OWN_SCORES`` replaces some of these scorers. All other data sets with a scorer of this kind are refused. Further data
sets are refused for the reasons in ``REFUSED`` (as of reasoning-gym 0.1.25).
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

INSTALL = "`make reasoning_gym` installs it"
NUMBERS = 2**31 - 1  # number of items of a data set; the items are numbered from 0
LONGEST = 10_000  # maximum length of an answer in characters; a longer answer scores 0
_EVALUATES = "its scorer evaluates the answer as Python"
_UNBOUNDED = "its scorer repeats a move as often as the answer states, without a limit"
_AGAIN = "its items cannot be generated again one by one"
REFUSED: Mapping[str, str] = {
    "simple_integration": _EVALUATES,
    "intermediate_integration": _EVALUATES,
    "polynomial_multiplication": _EVALUATES,
    "puzzle24": "its scorer ignores the numbers of the question, so one answer is accepted for every question",
    "game_of_life_halting": "its scorer accepts any answer",
    "coin_flip": "its scorer accepts the answer 0 for nearly every question",
    "propositional_logic": "its scorer accepts a premise of the question as the conclusion",
    "rubiks_cube": _UNBOUNDED,
    "rush_hour": _UNBOUNDED,
    "gsm_symbolic": "it generates all of its items when it is opened, which takes too much memory",
    "acre": _AGAIN,
    "codeio": _AGAIN,
    "list_functions": _AGAIN,
    "composite": "it is a mixture; name its data sets in env.tasks",
}
"""Name of a data set of reasoning-gym that cannot be used -> reason."""
LETTERS = ("spell_backward", "figlet_font")
"""Data sets whose scorer ignores letters of the answer after the length of the right answer.

In this environment, an answer with more letters than the right answer scores 0.
"""
OWN_TEXT = ("basic_arithmetic", "bitwise_arithmetic", "number_sorting")
"""Data sets whose modules evaluate text as Python, but only text that the package itself wrote."""
_EVALUATING = re.compile(r"(?<![\w.])(eval|exec)\(|\b(parse_expr|sympify)\(")


class MissingReasoningGymError(InputError):
    """The package reasoning-gym, or a library that it imports, is not installed."""


@dataclass(frozen=True, slots=True)
class Item:
    """A question of a data set."""

    question: str
    answer: str | None  # the package's answer; None if the package gives no answer
    entry: Mapping[str, Any] = field(repr=False)  # the item as the package returns it


def package() -> Any:
    """Imports the package reasoning-gym and returns its module ``factory``.

    Raises:
        MissingReasoningGymError: the package cannot be imported.
    """
    if find_spec("reasoning_gym") is None:
        raise MissingReasoningGymError(f"env=reasoning_gym needs reasoning-gym, which is not installed here; {INSTALL}")
    try:
        import reasoning_gym.factory
    except ImportError as error:
        raise MissingReasoningGymError(
            f"env=reasoning_gym: reasoning-gym cannot be imported ({error}); {INSTALL}"
        ) from error
    return reasoning_gym.factory


class Dataset:
    """One data set of the package reasoning-gym, opened with given settings.

    Args:
        name: the data set's name in the package.
        settings: settings of the data set's configuration. The setting ``level`` selects a level of the data set's
            curriculum. The curriculum gives the values of all settings that ``settings`` does not name.
        key: the configuration key, for error messages.

    Raises:
        InputError: there is no such data set or setting, a setting has an invalid value, or the data set is in
            ``REFUSED``.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], key: str = "tasks") -> None:
        known: Mapping[str, tuple[type, type]] = package().DATASETS
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            raise InputError(
                f"{key}.{name}: reasoning-gym has no such data set"
                + (f"; did you mean {', '.join(near)}?" if near else "")
            )
        made_by, configured_by = known[name]
        if reason := REFUSED.get(name) or _evaluates(name, made_by):
            raise InputError(f"{key}.{name}: this data set cannot be used: {reason}; leave the data set out")
        self.name, self.settings = name, dict(settings)
        config = self._config(configured_by, f"{key}.{name}")
        try:
            self._made = made_by(config=replace(config, seed=0, size=NUMBERS))
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(
                f"{key}.{name}: {error or 'the settings of this data set contradict one another'}"
            ) from error

    def _config(self, configured_by: type, key: str) -> Any:
        settings = dict(self.settings)
        level = settings.pop("level", None)
        names = {each.name for each in fields(configured_by)} - {"seed", "size"}
        if unknown := sorted(settings.keys() - names):
            raise InputError(
                f"{key}.{unknown[0]}: there is no such setting; the settings are {', '.join(sorted(names))} and level"
            )
        chosen = configured_by() if level is None else self._at(level, key)
        try:
            return replace(chosen, **settings)
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"{key}: {error}") from error

    def _at(self, level: Any, key: str) -> Any:
        """Returns the data set's configuration at a level of its curriculum.

        If an attribute of the curriculum has too few levels, the attribute's last level is used.
        """
        if self.name not in package().CURRICULA:
            raise InputError(
                f"{key}.level: reasoning-gym has no levels for this data set; remove level and give the settings of "
                "the data set instead"
            )
        if not isinstance(level, int) or level < 0:
            raise InputError(f"{key}.level: must be a whole number of at least 0, got {level!r}")
        curriculum = package().create_curriculum(self.name)
        for name, attribute in curriculum.attributes.items():
            curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
        return curriculum.generate_configuration()

    def item(self, number: int) -> Item:
        """Returns the item with the given number, from 0 to ``NUMBERS`` - 1. Equal numbers give equal items."""
        entry = self._made[number]
        answer = entry["answer"]
        return Item(str(entry["question"]), None if answer is None else str(answer), entry)

    def score(self, item: Item, answer: str) -> float:
        """Returns the score of an answer in [0, 1], from the package's scorer or from ``OWN_SCORES``.

        An answer of more than ``LONGEST`` characters scores 0. An answer also scores 0 if the scorer raises an error,
        or returns more than 1, because some scorers add up points by mistake.
        """
        if len(answer) > LONGEST or (self.name in LETTERS and len("".join(answer.split())) > len(item.answer or "")):
            return 0.0
        if self.name in OWN_SCORES:
            return OWN_SCORES[self.name](answer, item.entry)
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # the entry is copied, because some scorers change it
                score = float(self._made.score_answer(answer, copy.deepcopy(item.entry)))
        except Exception:  # the scorer could not read the answer
            return 0.0
        return max(0.0, score) if score <= 1 else 0.0  # NaN scores 0 too, because the comparison with 1 is false


def _evaluates(name: str, made_by: type) -> str:
    """Returns the reason to refuse a data set whose module evaluates text as Python; empty if it can be used."""
    if name in OWN_SCORES or name in OWN_TEXT:
        return ""
    source = inspect.getsource(inspect.getmodule(made_by) or made_by)
    return f"{_EVALUATES}, according to a search in its source code" if _EVALUATING.search(source) else ""
