"""Solves four games of textarena: a solver computes moves from the texts of an episode."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import ceil, log2
from typing import Protocol, TypeVar

Texts = Sequence[tuple[str, str]]  # pairs (action, observation), first an empty action with the first observation
P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves that the player can make now."""

    good: Sequence[str]  # the best moves
    idle: Sequence[str]  # other legal moves, which bring the player no closer to winning
    needed: int  # number of turns until the game is won, in the worst case; in Mastermind an estimate, at most 8


class Solver(Protocol):
    """Computes the moves of one game of textarena."""

    def moves(self, texts: Texts) -> Moves:
        """Returns the moves that the player can make after ``texts``, the texts of an unfinished episode."""
        ...

    def read(self, action: str) -> str | None:
        """Returns the move in an action, in the solver's notation; None if there is no move."""
        ...


class FrozenLake:
    """Solves the game FrozenLake: finds the shortest paths around the holes of the board."""

    _STEPS: Mapping[str, tuple[int, int]] = {"[up]": (-1, 0), "[down]": (1, 0), "[left]": (0, -1), "[right]": (0, 1)}
    _WORDS = re.compile(r"\[\s*(up|down|left|right|w|a|s|d)\s*\]", re.IGNORECASE)
    _KEYS: Mapping[str, str] = {"w": "up", "a": "left", "s": "down", "d": "right"}

    def read(self, action: str) -> str | None:
        found = self._WORDS.search(action)
        return f"[{self._KEYS.get(word := found[1].lower(), word)}]" if found else None

    def moves(self, texts: Texts) -> Moves:
        cells = _board(texts[-1][1])
        (at,) = (place for place, cell in cells.items() if cell == "P")
        (goal,) = (place for place, cell in cells.items() if cell == "G")
        free = {place for place, cell in cells.items() if cell != "H"}
        far = distances(goal, lambda place: ((place[0] + r, place[1] + c) for r, c in self._STEPS.values()), free)
        after = {move: far.get((at[0] + r, at[1] + c)) for move, (r, c) in self._STEPS.items()}
        good = [move for move, steps in after.items() if steps is not None and steps < far[at]]
        return Moves(good, [move for move, steps in after.items() if steps is not None and move not in good], far[at])


def _board(text: str) -> dict[tuple[int, int], str]:
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {(r, c): cell.strip() for r, row in enumerate(rows) for c, cell in enumerate(row)}


class GuessTheNumber:
    """Solves the game GuessTheNumber: finds the number by bisection.

    A guess is a good move if the number of further guesses in the worst case is as small as for the middle number.
    """

    def read(self, action: str) -> str | None:
        found = re.search(r"\[(\d{1,9})\]", action)
        return f"[{int(found[1])}]" if found else None

    def moves(self, texts: Texts) -> Moves:
        low, high = map(int, re.findall(r"between (\d+) and (\d+)", texts[0][1])[0])
        for action, shown in texts[1:]:
            guess, hint = self.read(action), re.search(r"The target number is (higher|lower)", shown)
            if guess and hint:
                number = int(guess[1:-1])
                low, high = (max(low, number + 1), high) if hint[1] == "higher" else (low, min(high, number - 1))
        left = {guess: max(guess - low, high - guess) for guess in range(low, high + 1)}
        fewest = _guesses(min(left.values()))
        order = sorted(left, key=lambda guess: left[guess])
        good = [f"[{guess}]" for guess in order if _guesses(left[guess]) == fewest]
        return Moves(good, [f"[{guess}]" for guess in order if _guesses(left[guess]) > fewest], fewest + 1)


def _guesses(numbers: int) -> int:
    """Returns the number of guesses that are needed in the worst case to find one of ``numbers`` candidates."""
    return ceil(log2(numbers + 1))


class TowerOfHanoi:
    """Solves the game TowerOfHanoi: finds the moves that begin a shortest solution from the current board."""

    def read(self, action: str) -> str | None:
        found = re.findall(r"\[([ABCabc])\s*,?\s*([ABCabc])\]", action)
        return f"[{found[0][0].upper()} {found[0][1].upper()}]" if len(found) == 1 else None

    def moves(self, texts: Texts) -> Moves:
        shown = next(text for _, text in reversed(texts) if "Current Board" in text).rpartition("Current Board")[2]
        towers = re.findall(r"^[ABC]: \[([\d, ]*)\]", shown, re.MULTILINE)
        at: Towers = tuple(tuple(map(int, tower.split(","))) if tower else () for tower in towers)
        goal: Towers = ((), (), tuple(sorted((disk for tower in at for disk in tower), reverse=True)))
        far = distances(goal, lambda place: _hanoi(place).values())
        after = {move: far[place] for move, place in _hanoi(at).items()}
        good = [move for move, steps in after.items() if steps < far[at]]
        return Moves(good, [move for move in after if move not in good], far[at])


Towers = tuple[tuple[int, ...], ...]


def _hanoi(towers: Towers) -> dict[str, Towers]:
    found: dict[str, Towers] = {}
    for one, other in permutations(range(3), 2):
        if towers[one] and (not towers[other] or towers[other][-1] > towers[one][-1]):
            moved = list(towers)
            moved[one], moved[other] = towers[one][:-1], (*towers[other], towers[one][-1])
            found[f"[{'ABC'[one]} {'ABC'[other]}]"] = tuple(moved)
    return found


class Mastermind:
    """Solves the game Mastermind: finds the secret code by elimination.

    A guess is a good move if it could be the secret code, given all answers of the game so far.
    """

    def read(self, action: str) -> str | None:
        found = re.search(r"\[(\d+(?:\s+\d+)*)\]", action)
        return f"[{' '.join(found[1].split())}]" if found else None

    def moves(self, texts: Texts) -> Moves:
        length, digits = map(
            int, re.findall(r"code that is (\d+) digits long, each digit from 1 to (\d+)", texts[0][1])[0]
        )
        repeats = "with possible repeats" in texts[0][1]
        every = list(
            product(range(1, digits + 1), repeat=length) if repeats else permutations(range(1, digits + 1), length)
        )
        told: dict[tuple[int, ...], tuple[int, int]] = {}
        for action, shown in texts[1:]:
            guess, pegs = self.read(action), re.search(r"(\d+) black peg\(s\), (\d+) white peg\(s\)", shown)
            if guess and pegs:
                told[tuple(map(int, guess[1:-1].split()))] = int(pegs[1]), int(pegs[2])
        agree = [code for code in every if all(_pegs(code, guess) == pegs for guess, pegs in told.items())]
        idle = [code for code in every[:: max(1, len(every) // 64)] if code not in told and code not in agree]
        return Moves(_written(agree), _written(idle), min(len(agree), 8))


def _pegs(code: Sequence[int], guess: Sequence[int]) -> tuple[int, int]:
    black = sum(a == b for a, b in zip(code, guess, strict=True))
    common = sum(min(code.count(digit), guess.count(digit)) for digit in set(guess))
    return black, common - black


def _written(codes: Iterable[Sequence[int]]) -> list[str]:
    return [f"[{' '.join(map(str, code))}]" for code in codes]


def distances(goal: P, near: Callable[[P], Iterable[P]], allowed: set[P] | None = None) -> dict[P, int]:
    """Returns the places from which the goal can be reached: place -> the smallest number of steps to the goal.

    Args:
        goal: the goal.
        near: a function that returns the places one step away from a place. Each step must be reversible.
        allowed: the places that may be entered; None means all.
    """
    found, queue = {goal: 0}, deque([goal])
    while queue:
        place = queue.popleft()
        for other in near(place):
            if other not in found and (allowed is None or other in allowed):
                found[other] = found[place] + 1
                queue.append(other)
    return found


SOLVERS: Mapping[str, Solver] = {
    "FrozenLake": FrozenLake(),
    "GuessTheNumber": GuessTheNumber(),
    "Mastermind": Mastermind(),
    "TowerOfHanoi": TowerOfHanoi(),
}
"""Name of a game -> the game's solver. The id of a game begins with its name."""
