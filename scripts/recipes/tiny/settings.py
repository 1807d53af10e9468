"""Defines the settings of a recipe and its three stretches of training.

They are imitation of an expert mixed with toy skills; reading drills, mixed with a little of the other documents so that
they are not forgotten; imitation of an expert that makes more mistakes, at a falling learning rate. Imitation alone did not
teach the base to read a list of the household within its 1,200 steps (docs/results/found.md).
"""

from __future__ import annotations

from dataclasses import dataclass

POOL = 8  # number of steps whose documents are drawn together, so that lengths can be matched


def schedule(step: int, steps: int, warmup: int = 50, decay: float = 0.3) -> float:
    """Returns the factor on the peak learning rate at step ``step`` of ``steps``.

    It rises linearly over ``warmup`` steps, is constant, and falls linearly over the last share ``decay`` of the steps.
    """
    start = steps * (1 - decay)
    falling = 1.0 if step < start else max(0.02, (steps - step) / max(1.0, steps - start))
    return min((step + 1) / warmup, falling)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A number of steps with one mixture. Counts are documents per step."""

    steps: int
    demonstrations: int
    skills: int
    other_weight: float  # loss weight of tokens that the assistant does not write
    drills: int = 0
    drill_weight: float = 0.0  # loss weight of a choice in a drill; other tokens of the assistant have weight 1
    errant: bool = False  # whether the demonstrations come from the expert that errs far more
    rate: float = 1.0  # factor on the recipe's learning rates
    warmup: int = 50  # steps over which the rate rises
    decay: float = 0.3  # share of the steps, at the end, over which the rate falls to 0

    def share(self, step: int) -> float:
        """Returns the factor on the recipe's learning rates at a step of this stretch."""
        return self.rate * schedule(step, self.steps, self.warmup, self.decay)


@dataclass(frozen=True, slots=True)
class Recipe:
    """All settings that determine the weights."""

    seed: int = 0
    steps: int = 1200  # steps of imitation
    reading: int = 200  # steps of drills
    settling: int = 152  # steps of imitation after the drills
    demonstrations: int = 20  # demonstrations in each step of imitation
    skills: int = 48  # question-and-answer pairs in each step of imitation
    drills: int = 0  # drills in each step of imitation
    other_weight: float = 0.3  # loss weight, during imitation, of tokens that the assistant does not write
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    family: str = "qwen3"  # qwen3 or llama
    hidden: int = 192
    head: int = 48  # width of a head
    layers: int = 4
    mlp: int = 512
    vocabulary: int = 1024
    theta: float = 10_000.0  # base of the rotary positions' wavelengths
    induction: int = 0  # 1: begin with heads that copy (model.py); 0: begin with random weights
    threads: int = 2

    @property
    def stretches(self) -> tuple[Stretch, Stretch, Stretch]:
        few, pairs = self.demonstrations // 2, self.skills // 2
        return (
            Stretch(self.steps, self.demonstrations, self.skills, self.other_weight, self.drills, 0.5),
            Stretch(self.reading, 3, 8, 0.0, drills=24, drill_weight=6.0, warmup=20, decay=0.0),
            Stretch(self.settling, few, pairs, 0.05, errant=True, rate=0.5, warmup=10, decay=0.7),
        )

    @property
    def total(self) -> int:
        return self.steps + self.reading + self.settling

    def stretch(self, step: int) -> tuple[Stretch, int]:
        """Returns the stretch to which a step belongs, and the number of steps of this stretch before it.

        ``steps`` and ``reading`` must be multiples of ``POOL``, so that a pool lies in one stretch.
        """
        for stretch in self.stretches:
            if step < stretch.steps:
                return stretch, step
            step -= stretch.steps
        raise IndexError(f"the step is too large: there are only {self.total} steps")
