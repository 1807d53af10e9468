"""Replaces some scorers of reasoning-gym that would evaluate the policy's answer as Python code, which is unsafe."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

LONGEST = 200  # maximum length of an expression in characters
_BELOW = 10**9  # upper bound of each number in an expression
_SIGNS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def countdown(answer: str, entry: Mapping[str, Any]) -> float:
    """Returns 1 if the answer is an expression that uses each given number once and has the target value, else 0."""
    try:
        value, used = calculated(answer)
    except (ValueError, ZeroDivisionError):
        return 0.0
    asked = entry["metadata"]
    return float(sorted(used) == sorted(asked["numbers"]) and value == asked["target"])


def same(answer: str, entry: Mapping[str, Any]) -> float:
    """Returns 1 if the answer equals reasoning-gym's answer, else 0. Whitespace at both ends is ignored."""
    return float(answer.strip() == entry["answer"].strip())


def n_queens(answer: str, entry: Mapping[str, Any]) -> float:
    """Returns 1 if the answer is one of the boards that solve the question, else 0."""
    return float(answer.strip() in {board.strip() for board in entry["metadata"]["valid_answers"]})


def calculated(text: str) -> tuple[Fraction, list[int]]:
    """Returns the value of an expression of whole numbers with + - * /, and the numbers in the expression.

    Raises:
        ValueError: the text is no expression of this kind, has more than ``LONGEST`` characters, or contains a number
            of at least 10**9.
        ZeroDivisionError: the expression divides by zero.
    """
    if len(text) > LONGEST or "#" in text:
        raise ValueError(f"an expression has at most {LONGEST} characters and no comment")
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"no expression: {error}") from error
    used: list[int] = []
    return _value(tree.body, used), used


def _value(node: ast.expr, used: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool) and number < _BELOW:
            used.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, used)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(left, used), _value(right, used))
    raise ValueError("only + - * / of whole numbers can be calculated")


OWN_SCORES: Mapping[str, Callable[[str, Mapping[str, Any]], float]] = {
    "countdown": countdown,
    "n_queens": n_queens,
    "binary_matrix": same,
    "spiral_matrix": same,
    "string_insertion": same,
}
"""Name of a data set -> function that scores an answer. Its arguments are the answer and the entry of the question."""
