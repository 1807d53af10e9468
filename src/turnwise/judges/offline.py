"""A judge that needs no server: it measures the rubric's dimensions by rules, optionally with bias and noise."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field

import numpy as np
from rapidfuzz.distance import LCSseq
from scipy.optimize import linear_sum_assignment

from turnwise.data.tool_schema import function_of
from turnwise.judges.judge import Candidate, gather
from turnwise.judges.prompt import calls_text, transcript
from turnwise.judges.rubric import PARAMETER_DIFFERS, TOOL_INVENTED, TOOL_MISSING, WEIGHTS, snap
from turnwise.types import ToolCall

_WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class OfflineJudge:
    """Computes the rubric of App. B.2 (AWPO, arXiv:2512.19126) by rules.

    It is the default judge and replaces a judging model.

    The score is snap(clip(s + ``bias`` + ``noise`` z)). Here s is :func:`grade`, and z is a standard normal draw whose
    seed is made from ``seed`` and the candidate's content. The same reply to the same prompt has the same score in
    every run.

    Rules only compare words. So reasoning that paraphrases the reference gets too low a score, and reasoning that
    repeats its words gets too high a score.
    """

    bias: float = 0.0
    noise: float = 0.0
    seed: int = 0
    _asked: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not -1 <= self.bias <= 1:
            raise ValueError(f"bias must be in [-1, 1], got {self.bias}")
        if not self.noise >= 0:
            raise ValueError(f"noise must be at least 0, got {self.noise}")

    def submit(self, candidate: Candidate) -> Future[float | None]:
        self._asked += 1
        future: Future[float | None] = Future()
        future.set_result(self.score(candidate))
        return future

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        return gather(self, candidates)

    def report(self) -> dict[str, float]:
        return {"asked": self._asked, "scored": self._asked, "failed": 0}

    def close(self) -> None:
        """Does nothing, because this judge holds no resources."""

    def score(self, candidate: Candidate) -> float:
        """Returns the score, one of the rubric's tiers."""
        score = grade(candidate) + self.bias
        if self.noise:
            score += self.noise * random.Random(self._seed_of(candidate)).gauss()
        return snap(min(1.0, max(0.0, score)))

    def _seed_of(self, candidate: Candidate) -> int:
        parts = (
            str(self.seed),
            transcript(candidate.prompt),
            candidate.text,
            candidate.reference or "",
            calls_text(candidate.reference_calls),
        )
        return int.from_bytes(hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).digest()[:8])


@dataclass(frozen=True, slots=True)
class Grades:
    """The four dimensions of the rubric, each in [0, 1]. ``reasoning`` is None if there is no reference rationale."""

    reasoning: float | None
    tools: float
    parameters: float
    conduct: float


def grade(candidate: Candidate) -> float:
    """Returns the weighted mean of the dimensions, limited by the rubric's caps, in [0, 1].

    It is not rounded to a tier yet.

    Without a reference rationale, the weight of the reasoning is given to the other dimensions. A reply that cannot be
    parsed is graded only for its reasoning, and its score is capped as if it missed every tool.
    """
    grades = {name: value for name, value in asdict(dimensions(candidate)).items() if value is not None}
    score = sum(WEIGHTS[name] * value for name, value in grades.items()) / sum(WEIGHTS[name] for name in grades)
    return min(score, cap(candidate))


def dimensions(candidate: Candidate) -> Grades:
    """Returns the four dimensions of a candidate.

    - reasoning: 2 L / (m + n), L the longest common subsequence of the words of thinking (m) and reference (n);
    - tools: 2 L / (m + n) over the sequences of tool names;
    - parameters: 2 e / (a + b) over the best one-to-one match of calls of the same tool, with e equal parameters, and a
      and b parameters in all on the two sides;
    - conduct: the share of the reply's calls that are neither repeated nor beyond the number of true calls.
    """
    reasoning = None
    if candidate.reference is not None:
        reasoning = _overlap(_words(candidate.thinking), _words(candidate.reference))
    calls, true = candidate.calls, candidate.reference_calls
    if calls is None:
        return Grades(reasoning, 0.0, 0.0, 0.0)
    tools = _overlap([call.name for call in calls], [call.name for call in true])
    surplus = max(len(calls) - len(true), len(calls) - _distinct(calls))
    conduct = 1 - surplus / len(calls) if calls else float(not true)
    return Grades(reasoning, tools, _parameters(calls, true), conduct)


def cap(candidate: Candidate) -> float:
    """Returns the highest score that the rubric allows.

    Missing tools, invented tools and different parameters limit it.
    """
    calls, true = candidate.calls or (), candidate.reference_calls
    caps = [1.0]
    wanted, used = Counter(call.name for call in true), Counter(call.name for call in calls)
    if wanted - used:
        caps.append(TOOL_MISSING)
    offered = {function_of(tool).get("name") for tool in candidate.tools}
    if offered and used.keys() - offered - wanted.keys():
        caps.append(TOOL_INVENTED)
    if _parameters(calls, true) < 1:
        caps.append(PARAMETER_DIFFERS)
    return min(caps)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Returns the Dice coefficient of two sequences by their longest common subsequence; 1 if both are empty."""
    return 2 * LCSseq.similarity(a, b) / (len(a) + len(b)) if a or b else 1.0


def _distinct(calls: Sequence[ToolCall]) -> int:
    return len({calls_text([call]) for call in calls})


def _parameters(calls: Sequence[ToolCall], true: Sequence[ToolCall]) -> float:
    total = sum(len(call.arguments) for call in (*calls, *true))
    if not total:
        return 1.0
    equal = np.zeros((len(calls), len(true)))
    for i, mine in enumerate(calls):
        for j, theirs in enumerate(true):
            if mine.name == theirs.name:
                equal[i, j] = sum(
                    name in theirs.arguments and _same(value, theirs.arguments[name])
                    for name, value in mine.arguments.items()
                )
    rows, columns = linear_sum_assignment(equal, maximize=True)
    return 2 * float(equal[rows, columns].sum()) / total


def _same(a: object, b: object) -> bool:
    """Returns whether two values are equal as JSON, where true is not 1."""
    return calls_text([ToolCall("", {"": a})]) == calls_text([ToolCall("", {"": b})])
