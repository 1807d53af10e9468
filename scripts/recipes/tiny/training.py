"""Trains a tiny base policy in resumable steps: Muon for matrices, AdamW for the rest. A mixture gives the documents."""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from scripts.recipes.tiny.documents import Document, encode, micro_batches, skill_conversations
from scripts.recipes.tiny.mixtures import Mixture
from scripts.recipes.tiny.model import make_model
from scripts.recipes.tiny.settings import POOL, Recipe
from scripts.recipes.tiny.tokenizer import build_tokenizer
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast


class Muon(torch.optim.Optimizer):
    """The Muon optimiser: momentum orthogonalised by Newton-Schulz iteration (K. Jordan, 2024), for all matrices of one
    shape at once.

    ``torch.optim.Muon`` iterates in bfloat16, which a CPU without bfloat16 instructions emulates at several times the
    cost of float32. This optimiser uses the parameters' own precision and Nesterov momentum, and scales the step by
    sqrt(max(1, rows / columns)).
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append((parameter, parameter.grad))
            for (rows, columns), pairs in by_shape.items():
                moves = []
                for parameter, grad in pairs:
                    state = self.state[parameter]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(parameter)
                    state["momentum"].lerp_(grad, 1 - group["momentum"])
                    moves.append(grad.lerp(state["momentum"], group["momentum"]))
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                for (parameter, _), move in zip(pairs, orthogonalise(torch.stack(moves)), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(move, alpha=-size)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Returns approximately U V^T for each matrix U S V^T of a batch (n, rows, columns).

    The singular values of the results are between 0.7 and 1.2.
    """
    # coefficients of the quintic with the steepest slope at 0 that keeps values in that range
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def optimisers(model: Any, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Returns Muon for every matrix except the embedding, and AdamW for the rest."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [Muon(matrices, lr=muon_lr), torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]


def batch_loss(model: Any, documents: list[Document]) -> tuple[Tensor, float]:
    """Returns the summed weighted negative log-likelihood of right-padded documents, and the sum of the weights."""
    longest = max(len(d.ids) for d in documents)
    ids = torch.zeros(len(documents), longest, dtype=torch.long)
    weights = torch.zeros(len(documents), longest)
    for row, document in enumerate(documents):
        ids[row, : len(document.ids)] = torch.tensor(document.ids)
        weights[row, : len(document.ids)] = torch.tensor(document.weights)
    # No attention mask is needed, because attention is causal and all padding is to the right of the scored tokens.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    wanted = weights[:, 1:] > 0
    logits = model.lm_head(hidden[wanted])
    nll = F.cross_entropy(logits, ids[:, 1:][wanted], reduction="none")
    weight = weights[:, 1:][wanted]
    return (nll * weight).sum(), float(weight.sum())


class Threads:
    """Computes the gradients of several micro-batches of one step in parallel threads, over shared parameters.

    On two cores this is about 1.5 times as fast as one stream with two threads per operation, because no thread waits
    for the other thread after every small operation.
    """

    def __init__(self, count: int) -> None:
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(self, model: Any, parts: list[list[Document]]) -> float:
        """Sets every ``grad`` to the gradient of the weighted mean loss over all parts, and returns the loss."""
        parameters = list(model.parameters())
        total = sum(sum(d.weights[1:]) for part in parts for d in part)

        def one(part: list[Document]) -> tuple[float, tuple[Tensor, ...]]:
            loss, _ = batch_loss(model, part)
            loss = loss / total
            return float(loss.detach()), torch.autograd.grad(loss, parameters)

        results = list(self.pool.map(one, parts))
        for parameter, *pieces in zip(parameters, *(grads for _, grads in results), strict=True):
            parameter.grad = torch.stack(pieces).sum(0) if len(pieces) > 1 else pieces[0]
        return sum(loss for loss, _ in results)


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
    """Returns the micro-batches of ``POOL`` steps.

    For each step there is one list per thread, first of demonstrations, then of each other kind of document.
    """
    seed = (recipe.seed + 1) * 1_000_003 + number
    threads, stretch = recipe.threads, recipe.stretch(number * POOL)[0]
    shown = mixture.demonstrations(tokenizer, stretch.demonstrations * POOL, seed, stretch.errant, stretch.other_weight)
    parts = micro_batches(shown, POOL * threads)
    pairs = [encode(m, tokenizer, stretch.other_weight) for m in skill_conversations(stretch.skills * POOL, seed)]
    drills = list(mixture.drills(tokenizer, stretch.drills * POOL, seed, stretch.drill_weight))
    # The k-th shortest document is paired with the k-th longest, so that every step contains all lengths and its
    # threads get equal work.
    steps = [
        [parts[(i + j * POOL) if j % 2 == 0 else (j + 1) * POOL - 1 - i] for j in range(threads)] for i in range(POOL)
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
    number, skip = divmod(start, POOL)
    last = -(-recipe.total // POOL)  # number of pools
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
        workers: number of processes that draw documents in advance.
    """

    def __init__(self, recipe: Recipe, mixture: Mixture, tokenizer: Any, folder: Path, workers: int = 1) -> None:
        self.recipe, self.mixture, self.tokenizer, self.folder, self.workers = (
            recipe,
            mixture,
            tokenizer,
            folder,
            workers,
        )
        self.model = make_model(recipe, tokenizer)
        self.optimisers = optimisers(self.model, recipe.muon_lr, recipe.adam_lr)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def machine(self) -> str:
        return f"{os.cpu_count()} CPU cores, {platform.machine()}, {self.recipe.threads} threads"

    @property
    def path(self) -> Path:
        return self.folder / "run.pt"

    def save(self) -> None:
        """Saves everything on which the next step depends. After a kill, the old or the new file is complete."""
        state = {
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            **{k: getattr(self, k) for k in ("step", "tokens", "seconds")},
        }
        temporary = self.path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.path)

    def load(self) -> bool:
        """Restores the saved state and returns True, or returns False if there is none."""
        if not self.path.is_file():
            return False
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        return True

    def train(self, saved: Callable[[Training], object], every: int) -> None:
        """Trains up to the last step, saves every ``every`` steps, and then calls ``saved``, which ``seconds`` leaves out."""
        recipe, threads = self.recipe, Threads(self.recipe.threads)
        bar = tqdm(total=recipe.total, initial=self.step, desc="tiny", unit="step", mininterval=5, smoothing=0.1)
        source = batches(self.mixture, self.tokenizer, recipe, self.step, self.workers)
        while self.step < recipe.total:
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
            if self.step % every == 0 or self.step == recipe.total:
                self.save()
                saved(self)
        source.close()
        bar.close()
