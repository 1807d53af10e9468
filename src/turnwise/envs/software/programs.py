"""Defines the functions of generated repositories, and the ways in which each function can be broken.

A body line that can be broken is written as a tuple: first the right line, then its wrong forms. The tests in the
repository contain one test case of each function. All other test cases are hidden from the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Line = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One function of a generated repository."""

    name: str
    head: str  # the function's parameters, as written in the source
    body: tuple[Line, ...]
    cases: tuple[tuple[str, str], ...]  # (arguments, right value), both as Python text

    def text(self, broken: tuple[int, int] | None = None) -> str:
        """Returns the function's source code with the wrong line ``broken``: (index of the line, index of its form)."""
        lines = []
        for i, line in enumerate(self.body):
            forms = (line,) if isinstance(line, str) else line
            lines.append("    " + forms[broken[1] if broken is not None and broken[0] == i else 0])
        return "\n".join([f"def {self.name}({self.head}):", *lines]) + "\n"

    def faults(self) -> list[tuple[int, int]]:
        """Returns all ways to break one line of the function, each as (index of the line, index of its wrong form)."""
        return [
            (i, form) for i, line in enumerate(self.body) if isinstance(line, tuple) for form in range(1, len(line))
        ]


_ALL = (
    Program(
        "total", "items",
        (("n = 0", "n = 1"), "for x in items:", ("    n = n + x", "    n = n - x", "    n = x"), "return n"),
        (("[1, 2]", "3"), ("[4]", "4"), ("[]", "0"), ("[2, 3, 4]", "9"), ("[5, 0, -2]", "3"), ("[-1]", "-1")),
    ),
    Program(
        "largest", "items",
        ("best = items[0]", "for x in items:", ("    if x > best:", "    if x < best:", "    if x == best:"),
         "        best = x", "return best"),
        (("[1, 3, 2]", "3"), ("[4, 1]", "4"), ("[5]", "5"), ("[-3, -1, -2]", "-1"), ("[0, 9]", "9"), ("[2, 2]", "2")),
    ),
    Program(
        "smallest", "items",
        ("best = items[0]", "for x in items:", ("    if x < best:", "    if x > best:"), "        best = x",
         ("return best", "return x", "return items[0]")),
        (("[3, 1, 2]", "1"), ("[4, 9]", "4"), ("[7, 5]", "5"), ("[-3, -1]", "-3"), ("[9, 0, 3]", "0"), ("[2]", "2")),
    ),
    Program(
        "mean", "items",
        (("n = len(items)", "n = len(items) - 1", "n = 2"), ("return sum(items) / n", "return sum(items) * n")),
        (("[1, 2, 6]", "3.0"), ("[4]", "4.0"), ("[2, 4, 6, 8]", "5.0"), ("[0, 0, 3]", "1.0"), ("[5, 6, 7]", "6.0"),
         ("[-2, 2, 3]", "1.0")),
    ),
    Program(
        "count", "items, x",
        ("n = 0", "for y in items:", ("    if y == x:", "    if y != x:", "    if y > x:"),
         ("        n = n + 1", "        n = 1"), "return n"),
        (("[1, 2, 1], 1", "2"), ("[3], 4", "0"), ("[5, 5, 5], 5", "3"), ("[1, 2, 3], 2", "1"), ("[], 1", "0"),
         ("[2, 3, 3], 3", "2")),
    ),
    Program(
        "index", "items, x",
        ("for i, y in enumerate(items):", ("    if y == x:", "    if y != x:"),
         ("        return i", "        return y", "        return i + 1"), ("return -1", "return 0")),
        (("[4, 6], 6", "1"), ("[4, 6], 5", "-1"), ("[7], 7", "0"), ("[1, 2, 3], 3", "2"), ("[], 1", "-1"),
         ("[8, 9, 8], 8", "0")),
    ),
    Program(
        "clamp", "x, low, high",
        (("if x < low:", "if x > low:"), ("    return low", "    return high"), ("if x > high:", "if x < high:"),
         ("    return high", "    return low"), "return x"),
        (("1, 2, 5", "2"), ("7, 2, 5", "5"), ("3, 2, 5", "3"), ("0, 1, 9", "1"), ("12, 1, 9", "9"), ("4, 1, 9", "4")),
    ),
    Program(
        "power", "x, n",
        (("y = 1", "y = 0", "y = x"), ("for i in range(n):", "for i in range(x):"), ("    y = y * x", "    y = y + x"),
         "return y"),
        (("2, 3", "8"), ("5, 0", "1"), ("3, 2", "9"), ("4, 1", "4"), ("2, 5", "32"), ("7, 2", "49")),
    ),
    Program(
        "even", "x",
        (("return x % 2 == 0", "return x % 2 == 1", "return x / 2 == 0"),),
        (("4", "True"), ("3", "False"), ("0", "True"), ("7", "False"), ("10", "True"), ("-1", "False")),
    ),
    Program(
        "area", "a, b",
        (("return a * b", "return a + b", "return a * a", "return a / b"),),
        (("2, 3", "6"), ("4, 5", "20"), ("1, 7", "7"), ("6, 2", "12"), ("3, 3", "9"), ("0, 4", "0")),
    ),
    Program(
        "first", "words",
        (("return words[0]", "return words[1]", "return words[-1]"),),
        (("['a', 'b', 'c']", "'a'"), ("['x', 'y']", "'x'"), ("['k', 'l']", "'k'"), ("['q', 'a']", "'q'"),
         ("['d', 'c', 'b']", "'d'"), ("['z', 'z', 'y']", "'z'")),
    ),
    Program(
        "last", "words",
        (("return words[-1]", "return words[0]", "return words[1]"),),
        (("['a', 'b', 'c']", "'c'"), ("['x', 'y', 'z']", "'z'"), ("['k', 'l', 'm', 'n']", "'n'"),
         ("['q', 'r', 's']", "'s'"), ("['d', 'c', 'b']", "'b'"), ("['p', 'o', 'i', 'u']", "'u'")),
    ),
    Program(
        "join", "words",
        ("text = ''", "for w in words:", ("    text = text + w", "    text = w + text", "    text = w"), "return text"),
        (("['a', 'b']", "'ab'"), ("['x', 'y', 'z']", "'xyz'"), ("[]", "''"), ("['c', 'a']", "'ca'"), ("['k']", "'k'"),
         ("['m', 'n', 'o']", "'mno'")),
    ),
    Program(
        "middle", "items",
        (("items = sorted(items)", "items = list(items)"),
         ("return items[len(items) // 2]", "return items[len(items) // 2 - 1]", "return items[0]")),
        (("[3, 1, 2]", "2"), ("[9, 5, 7]", "7"), ("[4]", "4"), ("[8, 1, 9, 2, 3]", "3"), ("[6, 0, 5]", "5"),
         ("[7, 7, 1]", "7")),
    ),
    Program(
        "gap", "a, b",
        (("if a > b:", "if a < b:"), ("    return a - b", "    return a + b"), ("return b - a", "return a - b")),
        (("5, 3", "2"), ("2, 6", "4"), ("1, 1", "0"), ("0, 9", "9"), ("8, 1", "7"), ("3, 4", "1")),
    ),
    Program(
        "unique", "items",
        ("seen = []", "for x in items:", ("    if x not in seen:", "    if x in seen:", "    if seen:"),
         ("        seen.append(x)", "        seen.append(1)"), "return seen"),
        (("[1, 1, 2]", "[1, 2]"), ("[3, 2, 3]", "[3, 2]"), ("[5]", "[5]"), ("[4, 4, 4]", "[4]"), ("[0, 1, 0]", "[0, 1]"),
         ("[]", "[]")),
    ),
)  # fmt: skip

PROGRAMS: Mapping[str, Program] = {program.name: program for program in _ALL}
