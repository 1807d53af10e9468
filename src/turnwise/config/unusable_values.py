"""Finds values that no part of a configuration can use, such as NaN, an empty text or a far too large number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_WHOLE = 2**53  # above this number, floating point cannot represent every whole number
_WAYS = ("none", "partial", "object", "all")  # values of Hydra's _convert_
_FROM_RUN = ("allocator", "gate", "engine")  # parts that receive some of their arguments from the run

_MOST = {  # dotted key, or last part of a dotted key in any group -> largest allowed value
    "rollout.states": 10**6,
    "rollout.frozen": 10**7,
    "rollout.turns": 10**6,
    "rollout.max_length": 2**24,
    "rollout.max_refills": 1000,
    "rollout.retries": 1000,
    "rollout.environment_threads": 1024,
    "rollout.environment_seconds": 10**6,
    "rollout.sampling.max_tokens": 2**20,
    "update.learning_rate": 10,
    "update.weight_decay": 100,
    "update.max_skips": 10**6,
    "predictor.learning_rate": 10,
    "predictor.weight_decay": 100,
    "predictor.epochs": 1000,
    "predictor.batch": 2**16,
    "loss.clip_high": 1000,
    "loss.kl_beta": 1000,
    "loss.entropy_coef": 1000,
    "eval.items": 10**6,
    "eval.attempts": 10**4,
    "data.trajectories": 10**7,
    "states.k": 2**16,
    "allocator.group_size": 2**16,
    "allocator.budget": 10**7,
    "allocator.expansion": 2**16,
    "allocator.roots": 2**16,
    "allocator.branches": 2**16,
    "trainer.max_epochs": 10**7,
    "trainer.num_nodes": 10**4,
    "max_tokens": 2**20,
    "horizon": 10**5,
    "steps": 10**5,
    "countries": 10**5,
    "results": 1000,
    "workers": 1024,
    "memory_mib": 2**24,
    "folder_mib": 2**20,
    "file_mib": 2**20,
    "output_kib": 2**20,
    "processes": 2**16,
    "files": 10**7,
    "servers": 1024,
    "concurrency": 2**16,
    "attempts": 1000,
    "restarts": 1000,
    "timeout": 10**6,
    "seconds": 10**5,
    "attempt_limit": 10**5,
    "time_limit": 10**5,
    "backoff": 3600,
    "longest_backoff": 3600,
    "cooldown": 10**5,
}


def unusable_values(node: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yields a message for each unusable value in the settings of a part: numbers that are not finite, whole numbers of
    at least 2^53, empty texts, and wrong values of Hydra's keys.

    An empty text usually comes from a shell variable that was not set, and some parts would treat it as null. Empty
    texts in loggers are not reported, because they repeat the run's name and folder, which are checked elsewhere.
    """
    for key, value in node.items():
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{place}: must be a finite number, got {value}"
        elif isinstance(value, int) and abs(value) >= _WHOLE:
            yield f"{place}: must be a whole number below {_WHOLE}, got a number of {len(str(abs(value)))} digits"
        elif isinstance(value, str) and not value.strip() and key != "_target_" and not path.startswith("logger."):
            yield f"{place}: the value is empty; give a value, or {place}=null if this setting may be null"
        elif key in ("_partial_", "_recursive_") and not isinstance(value, bool):
            yield f"{place}: must be true or false, got {value!r}"
        elif key == "_partial_" and value and path.partition(".")[0] not in _FROM_RUN:
            yield f"{place}: only {', '.join(_FROM_RUN)} take arguments from the run; leave out this key"
        elif key == "_convert_" and value not in _WAYS:
            yield f"{place}: must be one of {', '.join(_WAYS)}, got {value!r}"


def bad_name(name: Any) -> Iterator[str]:
    """Yields a message if the name of a run cannot be the name of a folder below ``outputs``."""
    parts = name.split("/") if isinstance(name, str) else []
    if parts and (not name.strip() or {"", ".", ".."} & set(parts) or not name.isprintable()):
        yield (
            f"name: {name!r} cannot be the name of a folder below outputs; use letters, digits and punctuation, and no "
            "part between slashes that is empty, . or .. (to write elsewhere, set paths.out=...)"
        )


def bad_seed(seed: Any) -> list[str]:
    """Reports a seed outside 0 to 2^32 - 1, which numpy would refuse during the run."""
    if not isinstance(seed, int) or 0 <= seed < 2**32:
        return []
    return [
        f"seed: the random generators accept only seeds from 0 to {2**32 - 1}, got {seed}; choose one in this range"
    ]


def too_large(tree: Mapping[str, Any]) -> list[str]:
    """Returns a message for each number of a resolved configuration that is above its largest allowed value. With that
    number, a run would never end, or would exhaust the machine's memory.
    """
    return [
        f"{key}: set it to at most {most:,}; got {value:,}"
        for key, value in _numbers(tree)
        if (most := _MOST.get(key, _MOST.get(key.rpartition(".")[2]))) is not None and value > most
    ]


def _numbers(node: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for key, value in node.items():
        place = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{place}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield place, value
