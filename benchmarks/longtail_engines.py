"""Creates the engines that ``benchmarks/longtail.py`` measures, with their weights and a counter of their tokens."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from transformers import AutoModelForCausalLM

from common import fill_adapter, tokenizer_of
from shapes import config_of
from slow_server import END, length_of
from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.lanes import Lanes
from turnwise.engines.vllm.engine import VllmEngine
from turnwise.engines.vllm.local import Local
from turnwise.engines.vllm.patience import Patience
from turnwise.models.policy import load_policy

SERVER = Path(__file__).with_name("slow_server.py")
RANK = 4


class LongReplies(VllmEngine):
    """Samples replies whose lengths are log-normal, like those of the simulated server.

    No token ends a reply. The seed of a request determines the reply's number of tokens.

    Args:
        mean: mean number of tokens of a reply, before the upper limit of the sampling settings.
        sigma: standard deviation of the logarithm of the number of tokens.
    """

    def __init__(self, mean: float, sigma: float, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.mean, self.sigma = mean, sigma

    async def _complete(self, node: int, history: Any, sampling: Sampling, seed: int) -> Sample:
        tokens = min(length_of(random.Random(seed), self.mean, self.sigma), sampling.max_tokens)
        sample = await super()._complete(node, history, replace(sampling, max_tokens=tokens), seed)
        return replace(sample, truncated=False)


@contextmanager
def opened(args: argparse.Namespace, folder: Path) -> Iterator[tuple[Any, Callable[[], dict[str, float]] | None]]:
    """Yields the engine with its weights loaded, and a function that returns its token counts, or None."""
    model = policy(folder / "policy", args.max_length)
    if args.engine == "stub":
        given = {"first": args.first, "half": args.half, "rows": args.places, "reply": args.reply, "sigma": args.sigma}
        options = [item for name, value in given.items() for item in (f"--{name}", str(value))]
        server = subprocess.Popen(
            [sys.executable, str(SERVER), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdin is not None and server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            engine = vllm(args, folder, [END], [url])
            engine.load_weights(model, 0)
            yield engine, lambda: counted(url)
            engine.shutdown()
        finally:
            server.stdin.close()
            server.wait(timeout=30)
        return
    ends = list(range(2, 2 + max(1, round(model.config.vocab_size / args.reply))))
    real: Any = vllm(args, folder, [], []) if args.engine == "vllm" else Lanes(ends, memory_gb=4)
    try:
        real.load_weights(model, 0)
        yield real, None
    finally:
        real.shutdown()


def vllm(args: argparse.Namespace, folder: Path, ends: list[int], urls: list[str]) -> VllmEngine:
    """Returns an engine over the servers ``urls``; without ``urls``, the engine starts vLLM and draws reply lengths."""
    kind = VllmEngine if urls else partial(LongReplies, args.reply, args.sigma)
    return kind(
        ends,
        str(folder / "policy"),
        folder / "engine",
        lambda line: print(line, file=sys.stderr),
        Local(python=args.vllm_python, lora_rank=RANK, rows=args.places, kv_gb=2, ahead=2, eager=True),
        Patience(concurrency=3 * args.groups * args.group),  # enough for several collections side by side
        urls=urls,
        max_length=args.max_length,
    )


def counted(url: str) -> dict[str, float]:
    with urlopen(f"{url}/tokens", timeout=30) as answer:
        return json.loads(answer.read())  # type: ignore[no-any-return]


def policy(folder: Path, longest: int) -> Any:
    """Returns a random policy of the shipped policy's shape with an adapter; all tokens are about equally likely."""
    torch.manual_seed(0)
    config = config_of("tiny")
    config.max_position_embeddings = longest
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    model, _ = load_policy(folder, "float32", RANK, 2 * RANK, seed=0)
    fill_adapter(model)
    return model
