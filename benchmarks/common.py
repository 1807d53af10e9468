"""Contains what all benchmarks share: options, machine, model, alternating rounds, table and last line.

Every benchmark measures Turnwise and its peers in one process, one after the other and round by round, so that a slow
minute of the machine affects all of them. A peer that is not installed is reported as null with the reason.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from devices import cpu_model, failure
from shapes import SHAPES, config_of
from turnwise.models.attention import use_tree_attention
from turnwise.models.policy import load_policy, with_adapter
from turnwise.shipped import tiny_path


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round: its seconds of wall-clock time, and the number of units (tokens, samples, updates) done."""

    seconds: float
    units: float = 1.0

    @property
    def rate(self) -> float:
        return self.units / self.seconds


@dataclass(slots=True)
class Contender:
    """A piece of work that is timed. ``warm`` runs once before the first round and is not timed."""

    name: str
    run: Callable[[int], Round]
    warm: Callable[[], object] | None = None
    note: str = ""
    rounds: list[Round] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Returns the median of the units per second."""
        return statistics.median(r.rate for r in self.rounds)

    @property
    def seconds(self) -> float:
        return statistics.median(r.seconds for r in self.rounds)


def program(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is ``doc``, with the option ``--json``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the last line to FILE")
    return parser


def options(doc: str | None, rounds: int = 3) -> argparse.ArgumentParser:
    """Returns a parser with the options of the benchmarks that compare contenders."""
    parser = program(doc)
    add = parser.add_argument
    add(
        "--rounds",
        type=positive,
        default=rounds,
        help=f"number of measured rounds; the result is their median ({rounds})",
    )
    add("--threads", type=positive, default=None, help="threads of every contender (default: the choice of torch)")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    add("--shape", choices=["tiny", *SHAPES], default="tiny", help="tiny: the shipped policy; others: random weights")
    add("--seed", type=int, default=0)
    add("--peers", nargs="*", default=None, metavar="NAME", help="measure only these peers (default: all installed)")
    add("--keep-going", action="store_true", help="list peers that fail under `absent`, and measure the others")
    return parser


def positive(text: str) -> int:
    """Parses an integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def prepare(args: argparse.Namespace) -> torch.device:
    """Sets threads and seed, silences libraries, and returns the device. Ends the program if the device is missing."""
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: torch finds no CUDA device here; use --device cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("WANDB_MODE", "disabled")
    warnings.filterwarnings("ignore")
    disable_progress_bar()
    for name in (
        "transformers",
        "lightning.pytorch",
        "lightning.fabric",
        "trl",
        "accelerate",
        "ContinuousBatchingLogger",
    ):
        logging.getLogger(name).setLevel(logging.ERROR)
    return torch.device(args.device)


def tokenizer_of() -> Any:
    """Returns the shipped tokenizer. Larger shapes use it too, because random weights read no text."""
    return AutoTokenizer.from_pretrained(tiny_path())


def model_of(shape: str, dtype: str, device: torch.device, attention: str = "sdpa") -> Any:
    """Returns a plain causal LM under transformers' own attention."""
    wanted = getattr(torch, dtype)
    if shape == "tiny":
        model = AutoModelForCausalLM.from_pretrained(tiny_path(), dtype=wanted, attn_implementation=attention)
    else:
        config = config_of(shape)
        config._attn_implementation = attention
        with device, torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=wanted)
    model.generation_config.do_sample = True
    return model.to(device).eval()


def policy_of(shape: str, dtype: str, device: torch.device, rank: int, alpha: float) -> Any:
    """Returns the policy as a run loads it: under tree attention, with a LoRA adapter whose both factors are not zero.

    PEFT initialises one factor with zeros, with which half of the gradients are zero. Small random numbers replace the
    zeros, as a few updates would.
    """
    if shape == "tiny":
        model, _ = load_policy(tiny_path(), dtype, rank, alpha, seed=0)
    else:
        plain = use_tree_attention(model_of(shape, dtype, device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = with_adapter(plain, rank, alpha, 0.0)
    fill_adapter(model)
    return model.to(device)


def fill_adapter(model: Any) -> None:
    """Fills every second LoRA factor with small random numbers, which are equal for all copies of a model."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


def chosen(args: argparse.Namespace, name: str) -> bool:
    """Returns whether the peer ``name`` is to be measured."""
    return args.peers is None or name in args.peers


def alternate(contenders: list[Contender], rounds: int, absent: dict[str, str] | None = None) -> None:
    """Warms up every contender, then measures each contender once per round.

    With ``absent``, a contender that fails leaves the list and its reason is stored in ``absent``, unless it is the
    first contender.
    """
    console = Console(stderr=True)
    with console.status("warm-up") as status, redirect_stdout(sys.stderr):
        for number in range(-1, rounds):
            for contender in list(contenders):
                status.update(f"{f'round {number + 1} of {rounds}' if number >= 0 else 'warm-up'}: {contender.name}")
                began = time.perf_counter()
                try:
                    if number >= 0:
                        contender.rounds.append(contender.run(number))
                    elif contender.warm is not None:
                        contender.warm()
                except Exception as error:
                    if absent is None or contender is contenders[0]:
                        raise
                    absent[contender.name] = failure(contender.name, error)
                    contenders.remove(contender)
                if not console.is_terminal:  # if a time limit ends the process, its output shows what took the time
                    console.print(
                        f"round {number + 1}, {contender.name}: {time.perf_counter() - began:.1f} s", highlight=False
                    )


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], float], device: torch.device) -> Round:
    """Times ``work``, which returns the number of units that it did."""
    synchronize(device)
    began = time.perf_counter()
    units = work()
    synchronize(device)
    return Round(time.perf_counter() - began, units)


def machine() -> dict[str, Any]:
    """Returns a description of the machine and of library versions."""
    found = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
    return found


def ratio(value: float, reference: float) -> float | None:
    """Returns ``value / reference`` to four digits, or None if the reference is zero or missing."""
    return float(f"{value / reference:.4g}") if reference else None


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()) -> None:
    """Prints a table on the terminal, with remarks below it."""
    console = Console()
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)


def contender_rows(contenders: Sequence[Contender], ours: str) -> list[list[str]]:
    """Returns rows of name, median seconds, units per second, slowest and fastest round, and the lead of ``ours``."""
    base = next(c for c in contenders if c.name == ours)
    return [
        [
            c.name,
            f"{c.seconds:.3f}",
            f"{c.rate:,.1f}",
            f"{min(r.rate for r in c.rounds):,.1f} to {max(r.rate for r in c.rounds):,.1f}",
            "" if c is base else f"{base.rate / c.rate:.2f}x",
        ]
        for c in contenders
    ]


def finish(name: str, args: argparse.Namespace, ratios: Mapping[str, Any], details: Mapping[str, Any]) -> None:
    """Prints the last line, one JSON object, and saves it if ``--json`` is given."""
    skipped = {"json", "vllm_python", "peers", "memory_of", "keep_going"}
    setting = {k: v for k, v in sorted(vars(args).items()) if k not in skipped}
    result = {"benchmark": name, **ratios, **details, "setting": setting, "machine": machine()}
    line = json.dumps(result, default=str)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)


def contender_details(contenders: Sequence[Contender]) -> dict[str, Any]:
    """Returns every contender's rounds, for the record."""
    return {
        "contenders": {
            c.name: {
                "rate": round(c.rate, 3),
                "seconds": round(c.seconds, 4),
                "rounds": [[round(r.seconds, 4), r.units] for r in c.rounds],
                **({"note": c.note} if c.note else {}),
            }
            for c in contenders
        }
    }
