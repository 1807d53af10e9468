"""Loads an environment of the verifiers library and reads the rows of the environment's data set."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from turnwise.errors import InputError

INSTALL = (
    "`make verifiers` installs it (pip install -r requirements-mcp.txt -c requirements.lock datasets, then "
    "pip install --no-deps -r requirements-verifiers.txt)"
)
_FOLD = 10  # without an evaluation set, the first of every ten rows is in the split seen, and the sixth in unseen


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """Returns the environment that ``verifiers.load_environment(name, **arguments)`` loads.

    Raises:
        InputError: the library or the module is missing or fails, or the environment cannot be used here.
    """
    if find_spec("verifiers") is None:
        raise InputError(f"env=verifiers needs the package verifiers, which is not installed here; {INSTALL}")
    import verifiers

    try:
        load_environment = verifiers.load_environment
    except AttributeError as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        raise InputError(
            f"env=verifiers: the installed version of verifiers has no load_environment{cause}; use version 0.2 or "
            f"0.3: {INSTALL}"
        ) from error
    if "VF_LOG_LEVEL" not in os.environ:
        verifiers.setup_logging("WARNING")
    try:
        with _signals_kept():
            environment = load_environment(name, **arguments)
    except Exception as error:  # the module may raise any exception
        raise InputError(
            f"env.id: {name!r} cannot be loaded ({error}); install its package, or correct env.args"
        ) from error
    if not isinstance(environment, verifiers.MultiTurnEnv):
        raise InputError(
            f"env.id: {name!r} is a {type(environment).__name__}, which cannot be used; choose a single-turn, "
            "multi-turn or tool environment"
        )
    if getattr(environment, "requires_group_rollouts", False):
        raise InputError(
            f"env.id: the rubric of {name!r} compares the rollouts of a group and cannot be used; choose an "
            "environment whose rubric scores each rollout alone"
        )
    return environment


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restores the handlers of SIGINT and SIGTERM at the end of a ``with`` block.

    The library's environments set handlers that would end the process at once.
    """
    main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def rows(environment: Any, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the id and the content of each row of a split, in the order of the data set.

    If the environment has an evaluation set, ``train`` is the whole training set, and the rows of the evaluation set
    are alternately in ``seen`` and ``unseen``. Otherwise 10% of the training set are in ``seen``, 10% in ``unseen``,
    and 80% in ``train``. A row of ``seen`` or ``unseen`` is left out if a row of ``train`` has the same prompt,
    question and answer.

    Raises:
        InputError: a row contains values that JSON cannot represent, or no row of ``seen`` or ``unseen`` is left.
    """
    trained, held_out = environment.build_dataset(), environment.build_eval_dataset()
    every = range(len(trained) if trained is not None else 0)
    if held_out is not None:
        parts: Mapping[str, Sequence[int]] = {
            "train": every,
            "seen": range(0, len(held_out), 2),
            "unseen": range(1, len(held_out), 2),
        }
    else:
        parts = {"seen": every[::_FOLD], "unseen": every[_FOLD // 2 :: _FOLD]}
        parts = {**parts, "train": sorted(set(every).difference(*parts.values()))}
    data, source = (trained, "train") if split == "train" or held_out is None else (held_out, "eval")
    chosen = parts[split]
    if split != "train":
        learned = {_question(trained[place]) for place in parts["train"]}
        chosen = [place for place in parts[split] if _question(data[place]) not in learned]
        if parts[split] and not chosen:
            raise InputError(
                f"env.id: every row of the split {split} is a training row too, so nothing is held out for evaluation; "
                "give the environment an evaluation set with other rows"
            )
    for place in chosen:
        row = data[place]
        try:
            yield f"{source}/{place}", json.loads(json.dumps(row, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"env.id: row {place} of the environment's {source} set cannot be written as JSON ({error})"
            ) from None


def _question(row: Mapping[str, Any]) -> str:
    """Returns the row's prompt, question and answer as one text."""
    return json.dumps([row.get("prompt"), row.get("question"), row.get("answer")], sort_keys=True, default=str)
