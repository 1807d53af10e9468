"""Implements a judge without a model: rules compute the scores."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Ge, Interval
from rapidfuzz.distance import LCSseq
from scipy.optimize import linear_sum_assignment

from turnwise.data.tool_schema import function_of
from turnwise.judges.judge import (
    PARAMETER_DIFFERS,
    TOOL_INVENTED,
    TOOL_MISSING,
    WEIGHTS,
    Candidate,
    calls_text,
    snap,
    transcript,
)
from turnwise.types import ToolCall

_WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class OfflineJudge:
    """Scores replies by rules that follow the rubric of AWPO (arXiv:2512.19126, App. B.2). This is the default judge.

    The score is snap(clip(s + ``bias`` + ``noise`` z)). Here s is the result of :func:`grade`, clip limits the sum to
    [0, 1], and :func:`snap` rounds to a tier. z is a standard normal random number, whose seed depends on ``seed`` and
    the candidate's content. So a candidate gets the same score in every run with the same settings. The rules compare
    only words: a paraphrase of the reference rationale is scored too low, and a repetition of its words too high.
    """

    bias: Annotated[float, Interval(ge=-1, le=1)] = 0.0
    noise: Annotated[float, Ge(0)] = 0.0
    seed: int = 0
    _asked: int = field(default=0, init=False, repr=False)

    def submit(self, candidate: Candidate) -> Future[float | None]:
        self._asked += 1
        future: Future[float | None] = Future()
        future.set_result(self.score(candidate))
        return future

    def report(self) -> dict[str, float]:
        return {"asked": self._asked, "scored": self._asked, "failed": 0}

    def close(self) -> None: ...

    def score(self, candidate: Candidate) -> float:
        score = grade(candidate) + self.bias
        if self.noise:
            score += self.noise * random.Random(self._seed_of(candidate)).gauss()
        return snap(min(1.0, max(0.0, score)))

    def _seed_of(self, candidate: Candidate) -> int:
        calls, prompt = calls_text(candidate.reference_calls), transcript(candidate.prompt)
        parts = (str(self.seed), prompt, candidate.text, candidate.reference or "", calls)
        return int.from_bytes(hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).digest()[:8])


def grade(candidate: Candidate) -> float:
    """Returns the weighted mean of a candidate's :func:`offline_grades`, limited by :func:`offline_cap` and not yet rounded to a
    tier. Without a reference rationale, the weight of the reasoning is distributed over the other dimensions.
    """
    grades = offline_grades(candidate)
    score = sum(WEIGHTS[name] * value for name, value in grades.items()) / sum(WEIGHTS[name] for name in grades)
    return min(score, offline_cap(candidate))


def offline_grades(candidate: Candidate) -> dict[str, float]:
    """Returns the offline judge's grades for a candidate in the rubric's four dimensions, each in [0, 1].

    - reasoning (only with a reference rationale): 2 L / (m + n), where the thinking has m words, the reference has n
      words, and L is the length of the longest common subsequence of both;
    - tools: 2 L / (m + n) for the tool names of the reply's calls and of the true calls instead of words;
    - parameters: 2 e / (a + b), where the reply's calls have a parameters, the true calls have b parameters, and e is
      the number of equal parameters under the best one-to-one match of calls of the same tool;
    - conduct: 1 - s / c, where the reply has c calls, and s is the greater of two numbers: by how many c exceeds the
      number of true calls, and how many of the reply's calls repeat an earlier call. Without calls in the reply,
      conduct is 1 if there are no true calls, otherwise 0.
    """
    grades = {}
    if candidate.reference is not None:
        grades["reasoning"] = _overlap(
            *(_WORD.findall(text.lower()) for text in (candidate.thinking, candidate.reference))
        )
    calls, true = candidate.calls, candidate.reference_calls
    if calls is None:
        return grades | {"tools": 0.0, "parameters": 0.0, "conduct": 0.0}
    tools = _overlap([call.name for call in calls], [call.name for call in true])
    different = {calls_text([call]) for call in calls}
    surplus = max(len(calls) - len(true), len(calls) - len(different))
    conduct = 1 - surplus / len(calls) if calls else float(not true)
    return grades | {"tools": tools, "parameters": _parameter_grade(calls, true), "conduct": conduct}


def offline_cap(candidate: Candidate) -> float:
    """The highest grade: missing tools, invented tools, and parameters that differ from the true calls limit it."""
    calls, true = candidate.calls or (), candidate.reference_calls
    caps = [1.0]
    wanted, used = Counter(call.name for call in true), Counter(call.name for call in calls)
    if wanted - used:
        caps.append(TOOL_MISSING)
    offered = {function_of(tool).get("name") for tool in candidate.tools}
    if offered and used.keys() - offered - wanted.keys():
        caps.append(TOOL_INVENTED)
    if _parameter_grade(calls, true) < 1:
        caps.append(PARAMETER_DIFFERS)
    return min(caps)


def _overlap(a: Sequence[str], b: Sequence[str]) -> float:
    return 2 * LCSseq.similarity(a, b) / (len(a) + len(b)) if a or b else 1.0


def _parameter_grade(calls: Sequence[ToolCall], true: Sequence[ToolCall]) -> float:
    total = sum(len(call.arguments) for call in (*calls, *true))
    if not total:
        return 1.0
    equal = np.zeros((len(calls), len(true)))
    for i, mine in enumerate(calls):
        for j, theirs in enumerate(true):
            if mine.name == theirs.name:
                equal[i, j] = sum(
                    name in theirs.arguments and _same_argument(value, theirs.arguments[name])
                    for name, value in mine.arguments.items()
                )
    rows, columns = linear_sum_assignment(equal, maximize=True)
    return 2 * float(equal[rows, columns].sum()) / total


def _same_argument(a: object, b: object) -> bool:
    return calls_text([ToolCall("", {"": a})]) == calls_text([ToolCall("", {"": b})])
