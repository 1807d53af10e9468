r"""Reads the published problem files of DeepScaleR, AIME, AMC, MATH500, Minerva and OlympiadBench.

Upper and lower case of keys do not matter. The problem's text is under ``problem`` or ``question``. The answer is under
``answer``, ``final_answer`` (OlympiadBench, a list), ``expected_answer`` or ``target``. If all of these are missing or
empty, the answer is the content of the last ``\boxed{}`` in ``solution`` (Minerva, MATH). Proofs and problems with
pictures of OlympiadBench are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.envs.data_files import cleaned, read_data_file
from turnwise.envs.math.problems import MathProblem
from turnwise.errors import InputError

_PROBLEM = ("problem", "question")
_ANSWER = ("answer", "final_answer", "expected_answer", "target")


def read_problems(path: str | Path, key: str) -> list[MathProblem]:
    """Returns the problems in a file, in the order of the file and without duplicates.

    Raises:
        InputError: the file cannot be read, a record has no problem or no answer, or no usable problem is left.
    """
    found: dict[str, MathProblem] = {}
    for place, record in read_data_file(path, key):
        lower = {str(name).lower(): value for name, value in record.items()}
        if _left_out(lower):
            continue
        text = next((lower[name] for name in _PROBLEM if isinstance(lower.get(name), str)), None)
        answer = _answer(lower)
        if text is None or not text.strip() or answer is None:
            missing = "problem" if text is None or not text.strip() else "final answer"
            raise InputError(
                f"{place}: the record has no {missing}; its keys are {sorted(map(str, record))}. A record needs the "
                f"problem under one of the keys {', '.join(_PROBLEM)}, and it needs the answer under one of the keys "
                f"{', '.join(_ANSWER)} or in a solution with \\boxed{{}}"
            )
        problem = MathProblem(str(lower.get("subject") or lower.get("type") or "file"), cleaned(text).strip(), answer)
        found.setdefault(problem.key, problem)
    if not found:
        raise InputError(f"{path}: the file contains no problem with a final answer; set {key} to another file")
    return list(found.values())


def boxed_answer(solution: str) -> str | None:
    r"""Returns the content of the last ``\boxed{}``; None if there is none, it is empty, or its braces do not match."""
    start = solution.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for at in range(begin, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[at], 0)
        if depth == 0:
            return solution[begin:at].strip() or None
    return None


def _left_out(record: Mapping[str, Any]) -> bool:
    """Returns whether a record is a proof or a problem with pictures of OlympiadBench."""
    if "olympiadbench" in str(record.get("source", "")).lower() or "final_answer" in record:
        pictures = any(record.get(name) not in (None, "", [], "[]") for name in record if str(name).startswith("image"))
        return pictures or record.get("modality") == "Multimodal" or record.get("final_answer", "") in (None, [], "[]")
    return False


def _answer(record: Mapping[str, Any]) -> str | None:
    for name in _ANSWER:
        value = record.get(name)
        if isinstance(value, str) and value.lstrip().startswith("[") and name == "final_answer":
            # the text need not be a list, because an interval also begins with a bracket
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a file with typed columns may store 204 as 204.0
        if value is not None and not isinstance(value, bool | dict) and str(value).strip():
            return cleaned(str(value)).strip()
    solution = record.get("solution")
    return boxed_answer(solution) if isinstance(solution, str) else None
