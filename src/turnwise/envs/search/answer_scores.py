"""Computes the exact match and the F1 of short answers, as SQuAD and HotpotQA (arXiv:1809.09600) define them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

F1_FLOOR = 0.3  # TRACE (arXiv:2606.11119), App. E.1.2: partial reward begins at this F1
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})  # answers for which there is no partial reward


@dataclass(frozen=True, slots=True)
class Score:
    """The score of an answer."""

    exact: bool  # whether the answer equals one of the right answers after normalisation
    f1: float  # the best F1 over all right answers

    def reward(self, floor: float = F1_FLOOR) -> float:
        """Returns the reward: 1 for an exact match, otherwise the F1 if it is at least ``floor``, otherwise 0."""
        if self.exact:
            return 1.0
        return self.f1 if self.f1 >= floor else 0.0


def normalise(text: str) -> str:
    """Returns a text in lower case, without punctuation, articles and surplus whitespace."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score(answer: str, references: Sequence[str]) -> Score:
    """Returns the score of an answer, compared with each of the right answers ``references``."""
    exact = any(normalise(answer) == normalise(reference) for reference in references)
    return Score(exact, max((f1(answer, reference) for reference in references), default=0.0))


def f1(answer: str, reference: str) -> float:
    """Returns the F1 of an answer: the harmonic mean of the precision and recall of its words, in [0, 1].

    If the texts differ and one of them is yes, no or noanswer, the F1 is 0.
    """
    given, wanted = normalise(answer), normalise(reference)
    if given != wanted and (given in _CLOSED or wanted in _CLOSED):
        return 0.0
    words, expected = given.split(), wanted.split()
    shared = sum((Counter(words) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(words), shared / len(expected)
    return 2 * precision * recall / (precision + recall)
