"""Settings that follow the model, the device and the data. ``${follow:VALUE}`` in a file of ``conf/`` is VALUE with a
shipped policy and with any scale but the default one. With a model of your own it is what a rule below says. Whatever
sets the key itself (another file, the command line) wins, and the run's ``config.yaml`` has the number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, Node, OmegaConf

from turnwise.hub import positions, read_config
from turnwise.shipped import BASES, PRETRAINED

OWN = "own"  # the scale of a run whose settings follow the model
ALWAYS = ("update.learning_rate", "iterations")  # which are told even if they are as with a shipped policy
PASSES, FEWEST, MOST = 3, 24, 200  # passes over the data; fewest iterations; most of a method that samples
LOOKED_AT = 2000  # number of records of a file from which lengths are taken
TINY = 20e6  # parameters below which a model of your own is trained as the shipped ones are
UNKNOWN = 4e9  # parameters assumed of a model that names no size
# LoRA's rate in imitation, by parameters: our choice. All weights, and reinforcement learning, take a tenth each.
RATES = ((TINY, 2e-3), (3e8, 1e-3), (2e9, 5e-4), (15e9, 2e-4), (float("inf"), 1e-4))
_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
_THINKS = re.compile(r"thinking|deepseek-r1|qwq|gpt-oss|qwen3-(?!.*(instruct|coder))")

Rule = Callable[["_Run", Any], tuple[Any, str]]


@cache
def size_of(model: str) -> tuple[float, str]:
    """The number of a model's parameters, also in words, from the files of a folder or from the model's name."""
    parameters, words = 0.0, ""
    if Path(model).is_dir():
        config = read_config(model)
        width = 4 if "32" in str(config.get("dtype") or config.get("torch_dtype") or "float32") else 2
        files = [file for file in Path(model).glob("*.safetensors") if file.is_file()]
        parameters = sum(file.stat().st_size for file in files) / width
        words = f"{parameters / 1e9:.2g}B" if parameters >= 1e8 else f"{parameters / 1e6:.2g}M"
    if not parameters and (found := _SIZE.search(model.rpartition("/")[2].lower())):
        many, number, unit = found.groups()
        parameters, words = int(many or 1) * float(number) * (1e9 if unit == "b" else 1e6), found[0].upper()
    return (parameters, words) if parameters else (UNKNOWN, "unknown size, taken for 4B")


@dataclass(frozen=True, slots=True)
class OwnFile:
    """What a file of dialogues says before it is tokenised. A token is counted as three bytes, which is generous."""

    dialogues: int
    replies: int
    reply: int  # tokens of all replies but the longest percent
    dialogue: int  # tokens of the longest dialogue


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=dict).encode())


@cache
def _file_to_follow(path: Path, size: int, changed: int) -> OwnFile | None:
    from turnwise.data.read_records import UnusableError, read_records  # here, because they are slow to import
    from turnwise.data.trajectories import parse_trajectory
    from turnwise.errors import InputError

    read, replies, longest, dialogues = [0], [], 0, 0
    with suppress(InputError):  # which the check of the machine reports
        for source, record in islice(read_records(path, on_bytes=read.append), LOOKED_AT):
            with suppress(UnusableError):
                trajectory = parse_trajectory(record, source)
                lengths = [_bytes(message) for message in trajectory.messages]
                own = [n for n, one in zip(lengths, trajectory.messages, strict=True) if one["role"] == "assistant"]
                replies += own[-1:] if trajectory.pivot else own
                longest = max(longest, sum(lengths) + _bytes(trajectory.tools))
                dialogues += 1
    if not replies:
        return None
    more = max(1.0, size / max(1, sum(read)))  # records that were not looked at
    reply = sorted(replies)[ceil(0.99 * len(replies)) - 1]
    return OwnFile(round(more * dialogues), round(more * len(replies)), ceil(reply / 3), ceil(longest / 3))


class _Run:
    def __init__(self, root: DictConfig) -> None:
        self.root = root
        self.model = str(self["policy.model"])
        folder = str(PRETRAINED.get(self.model, self.model))
        self.parameters, self.size = size_of(folder)
        self.positions = positions(read_config(folder))
        self.tiny = self.parameters < TINY
        self.gpu = self["trainer.accelerator"] in ("gpu", "cuda")
        self.lora = bool(self["policy.lora.r"])
        self.imitates = str(self["loss._target_"]).endswith(".Nll")
        self.at_starts = str(self["states._target_"]).endswith("TaskStarts")

    def __getitem__(self, key: str) -> Any:
        return OmegaConf.select(self.root, key)

    @property
    def own(self) -> OwnFile | None:
        """The run's file of dialogues, if the method reads one."""
        file = self["data.file"]
        if not isinstance(file, str) or self.at_starts or not Path(file).is_file():
            return None
        state = Path(file).stat()
        return _file_to_follow(Path(file).absolute(), state.st_size, state.st_mtime_ns)

    @property
    def thinks(self) -> bool:
        """Whether replies begin with thinking that the demonstrations do not have."""
        return not self.imitates and not self["policy.start"] and bool(_THINKS.search(self.model.lower()))


def _power(number: float) -> int:
    return 1 << max(0, ceil(number) - 1).bit_length()


def _rate(run: _Run, shipped: Any) -> tuple[Any, str]:
    rate = next(rate for most, rate in RATES if run.parameters < most)
    if not run.tiny:
        rate /= (1 if run.lora else 10) * (1 if run.imitates else 10)
    how = "LoRA" if run.lora else "all weights"
    return float(f"{rate:.1g}"), f"{how}, {'imitation' if run.imitates else 'samples'}, {run.size}"


def _follow_reply(run: _Run, shipped: Any) -> tuple[Any, str]:
    if not (own := run.own) and run.tiny:
        return shipped, "a tiny model"
    if run.thinks:
        room, why = 4096 if "thinking" in run.model.lower() and not own else 1024, "the model thinks first"
    else:
        room, why = 256, "a chat model's action"
    if own and (demonstrated := min(8192, _power(2 * own.reply + 16))) >= (room if run.thinks else 0):
        room, why = demonstrated, f"twice the replies of up to {own.reply} tokens, a power of two"
    follows = _follows(run.root.rollout._get_node("max_length"))
    most = run.positions if follows else int(run["rollout.max_length"])
    if most is not None and most <= room:
        return max(1, most // 2), "half of rollout.max_length"
    return room, why


def _follow_history(run: _Run, shipped: Any) -> tuple[Any, str]:
    if own := run.own:
        needed = own.dialogue * 1.2 + run["rollout.sampling.max_tokens"]
        room, why = min(32768, max(2048, _power(needed))), "the longest dialogue, and a reply"
    else:
        room, why = (shipped, "a tiny model") if run.tiny else (8192, "a chat model's dialogue")
    most = run.positions
    return (most, "the model's positions") if most is not None and most < room else (room, why)


def _follow_iterations(run: _Run, shipped: Any) -> tuple[Any, str]:
    drawn, own = run["rollout.states"], run.own
    if own is None and run.tiny:
        return shipped, "a tiny model"
    if own is not None:
        count = (own.dialogues if run.imitates else own.replies) * (1 - run["data.held_out"])
        what = "dialogues" if run.imitates else "replies"
    elif run.at_starts:
        count, what = run["states.count"], "tasks"
    else:
        count, what = run["data.trajectories"], "demonstrations"
        drawn = run["rollout.trajectories"] or drawn
    needed = ceil(PASSES * count / drawn)
    number = max(FEWEST, needed if run.imitates else min(MOST, needed))
    passes = number * drawn / max(1, count)
    return number, f"about {passes:.{'2g' if passes < 10 else '0f'}} passes over the {what}"


def _dtype(run: _Run, shipped: Any) -> tuple[Any, str]:
    if not run.gpu:
        return "float32", "a CPU"
    return ("bfloat16", "LoRA on a GPU") if run.lora else ("float32", "all weights: small steps need it")


def _on_gpu(value: Callable[[_Run], Any], why: str) -> Rule:
    return lambda run, shipped: (value(run), why) if run.gpu else (shipped, "a CPU: update.memory_gb decides")


RULES: Mapping[str, Rule] = {
    "scale": lambda run, shipped: (OWN, "not a shipped policy"),
    "policy.dtype": _dtype,
    "update.learning_rate": _rate,
    "iterations": _follow_iterations,
    "rollout.sampling.max_tokens": _follow_reply,
    "rollout.max_length": _follow_history,
    "update.row_tokens": _on_gpu(lambda run: run["rollout.max_length"], "a whole history"),
    "update.batch_tokens": _on_gpu(lambda run: max(16384, run["update.row_tokens"]), "a GPU"),
    "update.recompute": _on_gpu(lambda run: True, "a GPU's memory"),
    "eval.items": lambda run, shipped: (0, "the toy questions are for shipped policies"),
    "eval.every": lambda run, shipped: (max(shipped, ceil(run["iterations"] / 3)), "three times"),
}


def _follows(node: Any) -> bool:
    return isinstance(node, Node) and str(node._value()).startswith("${follow:")


def follow(shipped: Any, *, _node_: Node, _root_: DictConfig) -> Any:
    """The resolver: the value of the key of ``_node_``."""
    return _found(_node_, _root_, shipped)[0]


def _found(node: Node, root: DictConfig, shipped: Any) -> tuple[Any, str]:
    scale: Any = root._get_node("scale")
    try:
        default = _follows(scale) or (scale is not None and scale._value() == OWN)  # resolved in place
        if default and OmegaConf.select(root, "policy.model") not in BASES:
            return RULES[node._get_full_key(None)](_Run(root), shipped)
    except (TypeError, ValueError, ArithmeticError):  # from a value of a wrong type, which the check reports
        pass
    return shipped, ""


def followed_settings(cfg: DictConfig) -> list[str]:
    """``key=value (why)`` of every setting of a run that follows the model and is not as with a shipped policy."""
    lines = []
    for key in RULES:
        holder, _, last = key.rpartition(".")
        parent = OmegaConf.select(cfg, holder) if holder else cfg
        node: Any = parent._get_node(last) if isinstance(parent, DictConfig) else None
        if _follows(node):
            shipped = yaml.safe_load(node._value()[len("${follow:") : -1])
            value, why = _found(node, cfg, shipped)
            lines += (
                [f"  {key}={value} ({why})"] if why and value != OWN and (value != shipped or key in ALWAYS) else []
            )
    return [f"these settings follow {cfg.policy.model}; what you set yourself wins:", *lines] if lines else []
