"""Trains a tiny base policy: settings, model, resumable steps. The training data come from a mixture.

Training has three stretches: imitation of an expert mixed with toy skills; reading drills, mixed with a little of the
other documents so that they are not forgotten; imitation of an expert that makes more mistakes, at a falling learning
rate. Imitation alone did not teach this model to read a list of the household within its 1,200 steps
(docs/results/found.md).
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import torch
from scripts.recipes.tiny.corpus import Document, encode, micro_batches, skill_conversations
from scripts.recipes.tiny.mixture import Mixture
from scripts.recipes.tiny.model import FAMILIES, make_model
from scripts.recipes.tiny.optimise import Threads, optimisers, schedule
from scripts.recipes.tiny.tokenizer import build_tokenizer
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

_POOL = 8  # number of steps whose documents are drawn together, so that lengths can be matched


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
    induction: int = 0  # 1: begin with heads that copy (scripts.recipes.tiny.induction); 0: begin with random weights
    threads: int = 2

    def __post_init__(self) -> None:
        for name in ("steps", "demonstrations", "skills", "layers", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for stretch in self.stretches:
            if stretch.demonstrations < self.threads:
                raise ValueError(
                    f"every stretch must have at least threads={self.threads} demonstrations, got {stretch.demonstrations}"
                )
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {self.family}")
        if self.head < 2 or self.head % 2 or self.hidden % self.head:
            raise ValueError(f"head must be even and divide hidden, got head={self.head} and hidden={self.hidden}")
        if (self.reading or self.settling) and (self.steps % _POOL or self.reading % _POOL):
            raise ValueError(f"steps and reading must be multiples of {_POOL}, got {self.steps} and {self.reading}")

    @property
    def stretches(self) -> tuple[Stretch, Stretch, Stretch]:
        return (
            Stretch(self.steps, self.demonstrations, self.skills, self.other_weight, self.drills, 0.5),
            Stretch(self.reading, 3, 8, 0.0, drills=24, drill_weight=6.0, warmup=20, decay=0.0),
            Stretch(
                self.settling,
                self.demonstrations // 2,
                self.skills // 2,
                0.05,
                errant=True,
                rate=0.5,
                warmup=10,
                decay=0.7,
            ),
        )

    @property
    def total(self) -> int:
        return self.steps + self.reading + self.settling

    def stretch(self, step: int) -> tuple[Stretch, int]:
        """Returns the stretch to which a step belongs, and the number of steps of this stretch before it."""
        for stretch in self.stretches:
            if step < stretch.steps:
                return stretch, step
            step -= stretch.steps
        raise IndexError(f"the step is too large: there are only {self.total} steps")


def make_tokenizer(mixture: Mixture, recipe: Recipe, template: str) -> PreTrainedTokenizerFast:
    """Returns a tokenizer trained on the mixture's texts and 4,000 skill items, with the tokens of chat roles."""
    texts = ["system", "user", "assistant", "tool"] * 50
    texts += mixture.texts(recipe.seed)
    for pair in skill_conversations(4000, recipe.seed):
        texts += [m["content"] for m in pair]
    return build_tokenizer(texts, template, recipe.vocabulary)


_worker: dict[str, Any] = {}


def _start_worker(mixture: Mixture, tokenizer: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker.update(mixture=mixture, tokenizer=tokenizer)


def draw_pool(mixture: Mixture, tokenizer: Any, recipe: Recipe, number: int) -> list[list[list[Document]]]:
    """Returns the micro-batches of ``_POOL`` steps.

    For each step there is one list per thread, first of demonstrations, then of each other kind of document.
    """
    seed = (recipe.seed + 1) * 1_000_003 + number
    threads, stretch = recipe.threads, recipe.stretch(number * _POOL)[0]
    shown = mixture.demonstrations(
        tokenizer, stretch.demonstrations * _POOL, seed, stretch.errant, stretch.other_weight
    )
    parts = micro_batches(shown, _POOL * threads)
    pairs = [encode(m, tokenizer, stretch.other_weight) for m in skill_conversations(stretch.skills * _POOL, seed)]
    drills = list(mixture.drills(tokenizer, stretch.drills * _POOL, seed, stretch.drill_weight))
    # The k-th shortest document is paired with the k-th longest, so that every step contains all lengths and its
    # threads get equal work.
    steps = [
        [parts[(i + j * _POOL) if j % 2 == 0 else (j + 1) * _POOL - 1 - i] for j in range(threads)]
        for i in range(_POOL)
    ]
    Random(seed).shuffle(steps)
    batches = []
    for i, step in enumerate(steps):
        mine = pairs[i * stretch.skills : (i + 1) * stretch.skills]
        read = drills[i * stretch.drills : (i + 1) * stretch.drills]
        batches.append(
            step + [mine[j::threads] for j in range(threads)] + (micro_batches(read, 2 * threads) if read else [])
        )
    return batches


def _draw_in_worker(recipe: Recipe, number: int) -> list[list[list[Document]]]:
    return draw_pool(_worker["mixture"], _worker["tokenizer"], recipe, number)


def batches(
    mixture: Mixture, tokenizer: Any, recipe: Recipe, start: int, workers: int = 1
) -> Generator[list[list[Document]], None, None]:
    """Yields the micro-batches of step ``start`` and later steps, while other processes draw the next pools."""
    spawn = get_context("spawn")
    number, skip = divmod(start, _POOL)
    last = -(-recipe.total // _POOL)  # number of pools
    start_worker = partial(_start_worker, mixture, tokenizer)
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=start_worker) as pool:
        ahead: deque[Future] = deque()
        try:
            while number < last:
                while len(ahead) < min(2 * workers, last - number):
                    ahead.append(pool.submit(_draw_in_worker, recipe, number + len(ahead)))
                current, number = ahead.popleft().result(), number + 1
                yield from current[skip:]
                skip = 0
        finally:
            for future in ahead:
                future.cancel()


class Training:
    """A training run that can be saved and resumed.

    Args:
        folder: folder for its checkpoint.
        device: device on which the model is trained, as PyTorch names it.
        workers: number of processes that draw documents in advance.
    """

    def __init__(
        self, recipe: Recipe, mixture: Mixture, tokenizer: Any, folder: Path, device: str = "cpu", workers: int = 1
    ) -> None:
        self.recipe, self.mixture, self.tokenizer, self.folder = recipe, mixture, tokenizer, folder
        self.device, self.workers = device, workers
        self.model = make_model(recipe, tokenizer).to(device)
        self.optimisers = optimisers(self.model, recipe.muon_lr, recipe.adam_lr)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.history: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def machine(self) -> str:
        cores = f"{os.cpu_count()} CPU cores, {platform.machine()}"
        if self.device == "cpu":
            return f"{cores}, {self.recipe.threads} threads"
        return f"{torch.cuda.get_device_name(self.device)}; {cores}, {self.workers} of them drawing demonstrations"

    @property
    def path(self) -> Path:
        return self.folder / "run.pt"

    def save(self) -> None:
        """Saves everything on which the next step depends. After a kill, the old or the new file is complete."""
        state = {
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            **{k: getattr(self, k) for k in ("step", "tokens", "seconds", "history")},
        }
        temporary = self.path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.path)

    def load(self) -> bool:
        """Restores the saved state and returns True, or returns False if there is none."""
        if not self.path.is_file():
            return False
        state = torch.load(self.path, weights_only=True, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.history = state["history"]
        return True

    def train(self, evaluate: Callable[[Training], dict[str, Any]], every: int, until: int | None = None) -> None:
        """Trains up to the last step, and evaluates and saves every ``every`` steps.

        ``seconds`` does not count the evaluations.
        """
        recipe, threads = self.recipe, Threads(self.recipe.threads)
        bar = tqdm(total=recipe.total, initial=self.step, desc="tiny", unit="step", mininterval=5, smoothing=0.1)
        source = batches(self.mixture, self.tokenizer, recipe, self.step, self.workers)
        end = min(recipe.total, until or recipe.total)
        while self.step < end:
            began = time.perf_counter()
            stretch, passed = recipe.stretch(self.step)
            if passed == 0:  # the momentum from the previous stretch belongs to another mixture
                self.optimisers = optimisers(self.model, recipe.muon_lr, recipe.adam_lr)
            parts = next(source)
            loss = threads.gradients(self.model, parts)
            clip_grad_norm_(self.model.parameters(), 1.0)
            share = stretch.share(passed)
            for optimiser, peak in zip(self.optimisers, (recipe.muon_lr, recipe.adam_lr), strict=True):
                for group in optimiser.param_groups:
                    group["lr"] = peak * share
                optimiser.step()
            self.step += 1
            self.tokens += sum(len(d.ids) for part in parts for d in part)
            self.seconds += time.perf_counter() - began
            bar.set_postfix(loss=f"{loss:.3f}", tok_s=f"{self.tokens / self.seconds:.0f}", refresh=False)
            bar.update()
            if self.step % every == 0 or self.step == end:
                self.save()
                self.history.append({"step": self.step, "tokens": self.tokens, "loss": loss, **evaluate(self)})
        source.close()
        bar.close()
