"""Decides whether two answers are the same number, set, interval or expression, with the library math-verify.

A policy can write an answer with which math-verify runs for ever or fills the memory. So math-verify runs in a worker
process with limits on time and memory.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from pydantic import PositiveFloat

from turnwise.env import EnvironmentFault
from turnwise_worlds.workers import JsonWorker, NoAnswerError

LONGEST = 400  # maximum length of an answer in characters; right answers have at most about 100
_START = 60.0  # time limit in seconds for the worker to import its libraries
_NUMBER = re.compile(r"[-+]?(\d{1,18}|\d{1,3}(,\d{3}){1,5})(\.\d{1,18})?(/[1-9]\d{0,17})?")


class Equality:
    """Compares answers, each within ``seconds``. ``python`` is the worker's interpreter; None: that of this process."""

    def __init__(self, seconds: PositiveFloat = 5.0, python: str | None = None) -> None:
        self.seconds = seconds
        if python is not None and shutil.which(python) is None:
            raise ValueError(
                f"python: {python} is not a program; name an interpreter that has math-verify, or set python to null"
            )
        self._python = python or sys.executable
        self._worker: JsonWorker | None = None
        self._lock = threading.Lock()
        self._known = lru_cache(maxsize=65_536)(self._compare)

    def __call__(self, answer: str, reference: str) -> bool:
        """If the worker dies or exceeds the time limit, the answer counts as wrong."""
        return self._known(answer.strip(), reference.strip())

    def close(self) -> None:
        with self._lock:
            if self._worker is not None:
                self._worker.close()
                self._worker = None

    def _compare(self, answer: str, reference: str) -> bool:
        if answer == reference:
            return True
        if not answer or len(answer) > LONGEST or not answer.isprintable():
            return False
        numbers = _number(answer), _number(reference)
        if numbers[0] is not None and numbers[1] is not None:
            return numbers[0] == numbers[1]
        with self._lock:
            worker, self._worker = self._worker or self._started(), None
            try:
                reply = worker.ask({"answer": answer, "reference": reference}, self.seconds)
            except NoAnswerError:
                return False
            self._worker = worker
        return bool(reply["equal"])

    def _started(self) -> JsonWorker:
        worker = JsonWorker(
            [self._python, str(Path(__file__).with_name("equality_worker.py"))], {"OMP_NUM_THREADS": "1"}
        )
        try:
            why = worker.ask(None, _START).get("error")
        except NoAnswerError as error:
            why = f"it {error}"
        if why is not None:
            worker.close()
            raise EnvironmentFault(
                f"the process that compares answers did not start ({why}); install math-verify for the interpreter "
                f"{self._python} with 'pip install math-verify'"
            )
        return worker


def _number(text: str) -> Fraction | None:
    text = text.removesuffix(".")
    if not _NUMBER.fullmatch(text):
        return None
    top, _, bottom = text.replace(",", "").partition("/")
    return Fraction(top) / int(bottom or 1)
