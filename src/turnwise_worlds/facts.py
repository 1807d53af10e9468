"""``turnwise_worlds.facts.FactsEnv``: one-turn questions of general knowledge, an out-of-domain suite for pretrained models.

It is no environment to train in: it has no experts. An answer is right if it contains the fact as a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from turnwise.env import Environment, Session, Step, check_open, check_tasks, first_tasks
from turnwise.types import Message, Task

CAPITALS = """France Paris, Italy Rome, Germany Berlin, Spain Madrid, Portugal Lisbon, Greece Athens, Austria Vienna, Poland
Warsaw, Hungary Budapest, Sweden Stockholm, Norway Oslo, Finland Helsinki, Denmark Copenhagen, Ireland Dublin,
Belgium Brussels, Russia Moscow, Ukraine Kyiv, Turkey Ankara, Egypt Cairo, Morocco Rabat, Algeria Algiers, Tunisia
Tunis, Kenya Nairobi, Ghana Accra, Nigeria Abuja, Senegal Dakar, Japan Tokyo, China Beijing, India Delhi, Thailand
Bangkok, Vietnam Hanoi, Nepal Kathmandu, Iran Tehran, Iraq Baghdad, Jordan Amman, Lebanon Beirut, Syria Damascus,
Canada Ottawa, Cuba Havana, Jamaica Kingston, Peru Lima, Chile Santiago, Ecuador Quito, Colombia Bogota, Venezuela
Caracas, Bolivia Sucre, Uruguay Montevideo, Argentina Aires, Brazil Brasilia, Australia Canberra, Iceland Reykjavik,
Latvia Riga, Lithuania Vilnius, Estonia Tallinn, Bulgaria Sofia, Romania Bucharest, Serbia Belgrade, Croatia Zagreb"""
SYMBOLS = """hydrogen H, helium He, lithium Li, carbon C, nitrogen N, oxygen O, fluorine F, neon Ne, sodium Na, magnesium Mg,
aluminium Al, silicon Si, phosphorus P, sulfur S, chlorine Cl, argon Ar, potassium K, calcium Ca, titanium Ti,
chromium Cr, manganese Mn, iron Fe, cobalt Co, nickel Ni, copper Cu, zinc Zn, arsenic As, bromine Br, krypton Kr,
silver Ag, tin Sn, iodine I, xenon Xe, barium Ba, tungsten W, platinum Pt, gold Au, mercury Hg, lead Pb, radon Rn,
radium Ra, uranium U"""
OPPOSITES = """hot cold, big small, up down, left right, day night, open closed, fast slow, early late, happy sad, rich poor, hard
soft, light dark, wet dry, old young, full empty, strong weak, high low, long short, thick thin, true false, north
south, east west, love hate, win lose, begin end, push pull, buy sell, clean dirty, near far, loud quiet, sweet
sour, deep shallow, heavy light, good bad, first last"""


def _facts() -> Iterator[tuple[str, str, str]]:
    """Yields (kind, question, answer)."""
    asks = {
        "capital": "What is the capital of {}?",
        "symbol": "What is the chemical symbol of {}?",
        "opposite": "What is the opposite of '{}'?",
    }
    for (kind, ask), table in zip(asks.items(), (CAPITALS, SYMBOLS, OPPOSITES), strict=True):
        for pair in table.replace("\n", " ").split(","):
            of, answer = pair.split()
            yield kind, ask.format(of), answer
    for a in range(2, 10):
        for b in range(2, 10):
            yield "sum", f"What is {a} plus {b}?", str(a + b)


class FactsSession(Session):
    def __init__(self, task: Task) -> None:
        self.task, self.done, self.won = task, False, False

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": str(self.task.data["question"])}]

    def step(self, action: str) -> Step:
        check_open(self.task, self.done, 1)
        answer = str(self.task.data["answer"])
        exact = 0 if self.task.subset == "symbol" else re.IGNORECASE  # "as" is no arsenic
        self.done, self.won = True, bool(re.search(rf"\b{re.escape(answer)}\b", action, exact))
        return Step(f"The answer is {answer}.", float(self.won), True, self.won)


class FactsEnv(Environment):
    """Facts of four kinds (capitals, symbols of elements, opposites, sums), the same in every split."""

    name, horizon = "facts", 1

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        return [
            Task(self.name, f"{split}/{question}", split, {"question": question, "answer": answer}, kind)
            for kind, question, answer in first_tasks(list(_facts()), count, f"split {split} of facts", f"facts {seed}")
        ]

    def reset(self, task: Task) -> FactsSession:
        return FactsSession(task)
