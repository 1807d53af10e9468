"""Contains what all benchmarks share: options, machine, model, alternating rounds, peak memory, table and last line.

Every benchmark measures Turnwise and its peers in one process, one after the other and round by round, so that a slow
minute of the machine affects all of them. A peer that is not installed is reported as null with the reason.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import platform
import statistics
import subprocess
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
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from turnwise.models.attention import use_tree_attention
from turnwise.models.policy import load_policy, with_adapter
from turnwise.shipped import tiny_path
from turnwise.training.policy_module import out_of_memory
from turnwise_study.planning import GPUS

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
MARK = "peak bytes:"  # before the number that a process prints whose peak memory is measured

# Published architectures and three of our own, all with random weights, on which speed does not depend.
SHAPES: dict[str, dict[str, int]] = {
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3-4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    # as few tokens as the shipped policy, so that only the layers grow
    "20m": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 6,
            "num_key_value_heads": 6, "head_dim": 64, "vocab_size": 1024},
    "120m": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 13, "num_attention_heads": 12,
             "num_key_value_heads": 12, "head_dim": 64, "vocab_size": 1024},
    "qwen3-dry": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8},
}  # fmt: skip
SHARED_SHAPE = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 4096}


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


# -- options and machine -----------------------------------------------------------------------------------------------


def program(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is ``doc``, with the option ``--json``."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the last line to FILE")
    return parser


def options(doc: str | None, rounds: int = 3) -> argparse.ArgumentParser:
    """Returns a parser with the options of the benchmarks that compare contenders."""
    parser = program(doc)
    add = parser.add_argument
    add("--rounds", type=positive, default=rounds, help=f"measured rounds; the result is their median ({rounds})")
    add("--threads", type=positive, default=None, help="threads of every contender (default: the choice of torch)")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    add(
        "--shape",
        "--model",
        type=shape_or_folder,
        default="tiny",
        metavar="NAME",
        help=f"tiny: the shipped policy; {', '.join(SHAPES)}: random weights; or a model's folder",
    )
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


def shape_or_folder(text: str) -> str:
    """Parses the name of a shape or the folder of a model, for argparse."""
    if text == "tiny" or text in SHAPES or (Path(text) / "config.json").is_file():
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no folder of a model, and none of tiny, {', '.join(SHAPES)}")


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


def chosen(args: argparse.Namespace, name: str) -> bool:
    """Returns whether the peer ``name`` is to be measured."""
    return args.peers is None or name in args.peers


def machine() -> dict[str, Any]:
    found = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    return found | ({"gpu": torch.cuda.get_device_name(0)} if torch.cuda.is_available() else {})


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def peak_operations(device: torch.device) -> float | None:
    """Returns the dense bfloat16 operations per second of the data sheet, or None."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).lower()
    return next((gpu.peak_tflops * 1e12 for label, gpu in GPUS.items() if label in name), None)


# -- models ------------------------------------------------------------------------------------------------------------


def folder_of(shape: str) -> str | None:
    """Returns the folder with the weights of ``shape``, or None if they are random."""
    return None if shape in SHAPES else str(tiny_path()) if shape == "tiny" else shape


def config_of(shape: str) -> Any:
    """Returns the configuration of a shape; random weights have the special tokens of the shipped tokenizer."""
    if folder := folder_of(shape):
        return AutoConfig.from_pretrained(folder)
    ids = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, "tie_word_embeddings": True}
    return AutoConfig.for_model("qwen3", **{**SHARED_SHAPE, **SHAPES[shape], **ids})


def tokenizer_of(shape: str) -> Any:
    """Returns the tokenizer of a model, and the shipped one for random weights, which read no text."""
    return AutoTokenizer.from_pretrained(folder_of(shape) or tiny_path())


def model_of(shape: str, dtype: str, device: torch.device, attention: str = "sdpa") -> Any:
    """Returns a plain causal LM under transformers' own attention."""
    wanted = getattr(torch, dtype)
    if folder := folder_of(shape):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=wanted, attn_implementation=attention)
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

    PEFT initialises one factor with zeros, with which half of the gradients are zero. Small random numbers, equal for
    all copies of a model, replace the zeros, as a few updates would.
    """
    if folder := folder_of(shape):
        model, _ = load_policy(folder, dtype, rank, alpha, seed=0)
    else:
        plain = use_tree_attention(model_of(shape, dtype, device))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = with_adapter(plain, rank, alpha, 0.0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model.to(device)


def share_base(model: Any, owner: Any) -> None:
    """Replaces the frozen weights of ``model`` by the equal ones of ``owner``, so that memory holds them once."""
    for mine, theirs in zip(model.parameters(), owner.parameters(), strict=True):
        if not mine.requires_grad:
            mine.data = theirs.data
    free()


# -- rounds ------------------------------------------------------------------------------------------------------------


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
                    taken = f"round {number + 1}, {contender.name}: {time.perf_counter() - began:.1f} s"
                    console.print(taken, highlight=False)


def failure(name: str, error: BaseException) -> str:
    """Returns one line that says why ``name`` failed, and frees the device's unused memory."""
    short = isinstance(error, RuntimeError | MemoryError) and out_of_memory(error)
    lines = str(error).strip().splitlines()
    error.__traceback__ = None  # its frames hold tensors
    free()
    return f"{name}: {'out of memory' if short else type(error).__name__}: {lines[0] if lines else 'no message'}"


def free() -> None:
    """Frees the device's memory that no tensor uses."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def timed(work: Callable[[], float], device: torch.device) -> Round:
    """Times ``work``, which returns the number of units that it did."""
    synchronize(device)
    began = time.perf_counter()
    units = work()
    synchronize(device)
    return Round(time.perf_counter() - began, units)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- peak memory -------------------------------------------------------------------------------------------------------
# On a CPU no allocator records the peak, and a process that has run other contenders keeps their freed pages. So each
# contender runs alone in a process: model and data are built, a smallest step loads everything that is loaded lazily,
# the heap is trimmed, and the kernel's record of the peak is reset. Then the step runs.


def begin_peak(device: torch.device) -> int:
    """Begins a new record of the device's peak memory, and returns the bytes in use. On a CPU nothing is recorded."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_since(before: int, device: torch.device) -> int:
    """Returns the peak bytes of tensors on the device above ``before``, 0 on a CPU."""
    synchronize(device)
    return max(torch.cuda.max_memory_allocated(device) - before, 0) if device.type == "cuda" else 0


def device_peak(step: Callable[[], None], device: torch.device) -> int:
    before = begin_peak(device)
    step()
    return peak_since(before, device)


def say_peak(small: Callable[[], None], step: Callable[[], None], device: torch.device) -> None:
    """Prints the bytes that ``step`` needs at its peak in addition to the memory used before it."""
    small()
    gc.collect()
    if device.type == "cuda":
        print(MARK, device_peak(step, device))
        return
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the recorded peak
    before = _status("VmRSS")
    step()
    print(MARK, max(_status("VmHWM") - before, 0))


def _status(name: str) -> int:
    """Returns a size in bytes from the kernel's status of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def peak_of_child(script: str, way: str, args: argparse.Namespace) -> int:
    """Runs ``script`` with the same options for one contender only, and returns the bytes that it prints."""
    command = [sys.executable, script, "--memory-of", way]
    for name, value in vars(args).items():
        if name in ("memory_of", "json", "peers", "keep_going") or value is None or value is False:
            continue
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return int(line.removeprefix(MARK))
    raise RuntimeError(f"the process for {way} printed no peak (status {done.returncode}):\n{done.stderr[-2000:]}")


# -- results -----------------------------------------------------------------------------------------------------------


def ratio(value: float, reference: float) -> float | None:
    """Returns ``value / reference`` to four digits, or None if the reference is zero or missing."""
    return float(f"{value / reference:.4g}") if reference else None


def share(operations: float, seconds: float, rate: float | None) -> float | None:
    """Returns operations per second as a share of ``rate``, to three digits, or None without a rate."""
    return float(f"{operations / seconds / rate:.3g}") if rate else None


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


def finish(name: str, args: argparse.Namespace, ratios: Mapping[str, Any], details: Mapping[str, Any]) -> None:
    """Prints the last line, one JSON object, and saves it if ``--json`` is given."""
    skipped = {"json", "vllm_python", "llama_server", "peers", "memory_of", "keep_going"}
    setting = {k: v for k, v in sorted(vars(args).items()) if k not in skipped}
    setting |= {k: Path(setting[k]).name for k in ("shape", "gguf") if setting.get(k)}  # not where the folder lies
    line = json.dumps({"benchmark": name, **ratios, **details, "setting": setting, "machine": machine()}, default=str)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)
