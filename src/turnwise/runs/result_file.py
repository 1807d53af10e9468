"""Defines the schema of ``result.json``, writes it atomically and reads it with checks; does the same for
``status.json``, the progress of a run; and copies finished runs (kept runs) into archives for the repository.

Success rates are percentages (0 to 100), changes are differences in percentage points, and times are in seconds. Keys
that the schema does not know are kept. Tables and figures are computed from kept runs. The copy of the run
``outputs/pivotrl/tab1/pivotrl/seed0`` is in the archive ``results/pivotrl.runs.parquet``::

    tab1/pivotrl/seed0/
        result.json           unchanged
        config.yaml           unchanged
        metrics.jsonl         every row
        evaluation/*.jsonl    every attempt without its text: task, split and success, or item and score
        rollouts/train.jsonl  only if the run recorded every group: the turns, with a checksum in place of each text
"""

from __future__ import annotations

import fcntl
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnwise.errors import InputError
from turnwise.files import atomic_write, read_yaml
from turnwise.methods.gate import symbol
from turnwise.runs.archive import RunPath, checked_lines, write_archive


def _ordered(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise ValueError(f"an interval [low, high] must not have low above high, got [{interval[0]}, {interval[1]}]")
    return interval


Points = Annotated[float, Field(ge=0, le=100)]
Change = Annotated[float, Field(ge=-100, le=100)]
Interval = Annotated[tuple[Change, Change], AfterValidator(_ordered)]
Count = Annotated[int, Field(ge=0)]


class ResultError(InputError):
    """A run's result is missing, unreadable or does not follow the schema. The message names file, key and remedy."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class Comparison(_Part):
    """Success on the same tasks before (``base``) and after training; ``after`` is None in an unfinished run."""

    base: Points | None = None
    after: Points | None = None
    delta: Change | None = None
    delta_ci95: Interval | None = None
    tasks: Count | None = None
    by_split: dict[str, Comparison] = {}
    by_subset: dict[str, Comparison] = {}  # only for benchmarks with subsets (docs/metrics.md)
    subset_mean: Comparison | None = None  # unweighted mean of the subsets

    @model_validator(mode="after")
    def _delta_is_the_difference(self) -> Comparison:
        if self.base is not None and self.after is not None:
            if self.delta is None:
                self.delta = self.after - self.base
            elif abs(self.after - self.base - self.delta) > 0.11:  # each number may be rounded to one decimal
                raise ValueError(f"delta is {self.delta}, but after - base is {self.after - self.base:.2f}")
        return self


class InDomain(Comparison):
    """Held-out success in the trained environment, or the percentage of accepted replies in held-out dialogues.

    The inherited fields of :class:`Comparison` hold the main result of the run, in one of the two decoding modes.
    """

    greedy: Comparison | None = None
    sampled: Comparison | None = None
    pass_at_k: dict[str, Points | Comparison] = {}  # k -> pass@k after training, or before and after


class Nats(_Part):
    """A mean negative log-likelihood before and after training, in nats per token; lower is better."""

    base: float
    after: float
    delta: float
    delta_ci95: tuple[float, float] | None = None


class Replies(_Part):
    """Measurements on demonstrated replies that a run has not trained on."""

    replies: Count
    nll: Nats  # negative log-likelihood of the demonstrated replies
    functional: Comparison  # percentage of the policy's replies that a verifier accepts as equally good
    strict: Comparison  # percentage of the policy's replies that equal the demonstrated reply


class HeldOut(Replies):
    """Measurements on the held-out dialogues of a user's file. The inherited fields are about all replies."""

    dialogues: Count
    by_tool: dict[str, Replies] = {}  # tool that the demonstrated reply calls, or ``no_call`` -> its replies
    by_turn: dict[str, Replies] = {}  # number of the reply in its dialogue, from 1 -> its replies


class OutOfDomain(_Part):
    """Scores of the out-of-domain suites, which are never trained on."""

    base: dict[str, Points] = {}
    after: dict[str, Points] = {}
    mean_change: Change | None = None
    mean_change_ci95: Interval | None = None
    change_ci95: dict[str, Interval] = {}  # confidence interval of each suite's change
    items: Count | dict[str, Count] | None = None

    @property
    def suites(self) -> list[str]:
        """The names of all suites that were measured before or after training, in the order of the file."""
        return list(dict.fromkeys([*self.base, *self.after]))

    def change(self, suite: str) -> float | None:
        """Returns the change of a suite's score through training in percentage points; None if a score is missing."""
        if suite not in self.base or suite not in self.after:
            return None
        return self.after[suite] - self.base[suite]


class Result(_Part):
    """The result of one run. Success rates are percentages (0 to 100), and times are in seconds."""

    method: str
    env: str
    scale: str
    seed: int
    in_domain: InDomain
    ood: OutOfDomain = OutOfDomain()
    general: dict[str, Any] = {}  # divergence from the base model on general questions (eval.general)
    held_out: HeldOut | None = None  # only after training on dialogues without an environment
    environment: InDomain | None = None  # result on tasks of the environment, if ``in_domain`` is about dialogues
    rollout_turns: Count = 0
    rollout_tokens: Count = 0
    cpu_seconds: Annotated[float, Field(ge=0)] | None = None  # CPU time of training; None in results of older versions
    # costs of sampling the run's profiles; None if there was no profile, or if an older version did not record it
    profile_turns: Count | None = None
    profile_tokens: Count | None = None
    profile_cpu_seconds: Annotated[float, Field(ge=0)] | None = None
    faults: dict[str, Count] = {}  # failures of the environment: ``lost``, ``retries``, ``evaluations``
    seconds: dict[str, Annotated[float, Field(ge=0)]] = {}  # time of each phase
    wall_seconds: Annotated[float, Field(ge=0)] | None = None  # time of all starts of the run; None in older results
    judge: dict[str, float] = {}  # report of the judge (docs/judges.md); empty without a judge
    gate: dict[str, float] = {}  # number of stopped groups, and the estimated savings; empty without a gate
    warnings: list[str] = []  # problems during training, with the likely cause
    verifier: dict[str, dict[str, Any]] = {}  # domain -> counts of the verifier's verdicts; empty without a verifier
    pivots: dict[str, int | float] = {}  # facts about the first profile (docs/metrics.md); empty without a profile
    config_hash: str = ""
    commit: str = ""
    versions: dict[str, str] = {}
    finished: bool | str | None = None  # true, or the time at which the run ended
    name: str | None = None  # name of a sweep's row, for example "pivotrl/tab4/no_filter"
    command: str | None = None
    machine: str | None = None


def write_result(result: Result | dict[str, Any], folder: Path | str) -> Path:
    """Checks ``result``, writes ``<folder>/result.json`` atomically and returns its path.

    Raises:
        ResultError: the result does not follow the schema; in this case nothing is written.
        OSError: the folder cannot be written; the previous file is kept.
    """
    path = Path(folder) / "result.json"
    checked = result if isinstance(result, Result) else _check(result, str(path))
    text = json.dumps(checked.model_dump(mode="json", exclude_unset=False, exclude_none=True), indent=2) + "\n"
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def read_result(path: Path | str) -> Result:
    """Reads a ``result.json``; ``path`` is the file or the run's folder.

    Raises:
        ResultError: the file is missing, is not JSON or does not follow the schema. The message lists each wrong key.
    """
    path = RunPath(path)
    path = path / "result.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ResultError(
            f"{path}: this file does not exist, because the run did not finish. Start the run again to resume it."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ResultError(
            f"{path}: the file is not JSON ({error}). Start the run again to rewrite the file."
        ) from error
    return _check(raw, str(path))


def _check(raw: object, where: str) -> Result:
    try:
        return Result.model_validate(raw)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, e['loc'])) or 'result'}: {e['msg']} (got {e['input']!r:.60})" for e in error.errors()
        ]
        raise ResultError(
            f"{where}: the file does not follow the schema of result.json; correct these keys:\n" + "\n".join(lines)
        ) from None


# -- status ------------------------------------------------------------------------------------------------------------


NAME = "status.json"
PHASES = {
    "read": "reading the demonstrations",
    "evaluate base": "measuring the policy before training",
    "profile": "profiling the expert turns",
    "record": "sampling the groups that all updates train on",
    "train": "training",
    "evaluate after": "measuring the policy after training",
    "report": "writing the report",
}


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run at one moment. Times are in seconds; an unknown time is None.

    Attributes:
        state: ``running``, ``interrupted`` (a signal ended the process) or ``failed`` (an error ended it).
        phase: a key of :data:`PHASES`.
        done, total: number of finished steps and of all steps of the phase.
        left: estimated time until the phase ends.
        before: time that earlier starts of the run took.
        began, written: when this start of the run began, and when the status was written, as Unix times.
        command: the command that started the run.
        why: first line of the error that ended the run; empty if no error ended it.
    """

    state: str = "running"
    phase: str = ""
    done: float = 0
    total: float = 0
    left: float | None = None
    before: float = 0
    began: float = 0
    written: float = 0
    command: str = ""
    why: str = ""

    @property
    def running(self) -> bool:
        return self.state == "running"


def write_status(status: Status, folder: Path) -> None:
    """Writes ``<folder>/status.json`` atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(folder / NAME) as part:
        part.write_text(json.dumps(asdict(status)) + "\n", encoding="utf-8")


def read_status(folder: Path) -> Status | None:
    """Returns the current status of a run, or None if it cannot be read.

    If the status is ``running`` but no process holds the lock of the run's folder, ``interrupted`` is returned.
    """
    try:
        raw: Any = dict(json.loads((folder / NAME).read_text(encoding="utf-8")))
        status = Status(**{field.name: raw[field.name] for field in fields(Status)})
        float(status.done), float(status.total), float(status.began), float(status.written)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return replace(status, state="interrupted") if status.running and not _held(folder) else status


def _held(folder: Path) -> bool:
    try:
        with folder.resolve().with_name(f".{folder.resolve().name}.lock").open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    except OSError:
        pass
    return False


def spent(status: Status) -> float:
    return status.before + max(0.0, status.written - status.began)


def progress(status: Status) -> str:
    """Returns the progress in words, such as ``training, iteration 12 of 60``."""
    doing = PHASES.get(status.phase, status.phase or "starting")
    if not status.total or status.phase == "report":
        return doing
    unit = "iteration " if status.phase == "train" else ""
    return f"{doing}, {unit}{status.done:,.0f} of {status.total:,.0f}"


def remaining(status: Status) -> str:
    return "" if status.left is None else f"{about(status.left)} left"


def about(seconds: float) -> str:
    """Returns a rounded time in words, such as ``about 40 s``, ``about 8 min`` or ``about 2 h 10 min``."""
    if seconds < 55:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    minutes = max(1, round(seconds / 60))
    if minutes < 90:
        return f"about {minutes} min"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    return f"about {hours} h {rest:02d} min" if rest else f"about {hours} h"


HELD = "hydra.sweeper.arguments=["  # begins the argument in which a sweep holds what the user typed


def typed(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments that the user typed from those that Hydra got for a sweep, with Hydra's own ones last."""
    held = next((a for a in arguments if a.startswith(HELD)), None)
    if held is None:
        return list(arguments)
    own = [re.sub(r"\\(['$])", r"\1", part) for part in re.findall(r"'((?:\\.|[^'\\])*)'", held)]
    made = ("--multirun", "hydra/sweeper=", "hydra.sweeper.")
    return [*own, *(a for a in arguments if not a.startswith(made))]


# -- kept runs ---------------------------------------------------------------------------------------------------------


_OUTCOME = ("split", "task", "mode", "attempt", "subset", "success", "turns", "suite", "item", "score")


def finished(folders: Iterable[Path]) -> Iterator[Path]:
    """Yields the folders of finished runs in and below ``folders``, except renamed folders (``.old-<n>``)."""
    for folder in folders:
        for result in sorted(folder.rglob("result.json")):
            if ".old-" not in result.parent.name:
                yield result.parent


def keep(runs: Iterable[Path], outputs: Path, results: Path) -> tuple[list[Path], list[Exception]]:
    """Copies runs below ``outputs`` into the archives of ``results``, and returns the archives, and an error for each
    run that cannot be kept. Equal contents give equal bytes, so that a second copy of a run changes no file.
    """
    folders: dict[str, dict[str, bytes]] = {}
    errors: list[Exception] = []
    for run in runs:
        try:
            first, *rest = run.resolve().relative_to(outputs.resolve()).parts
            copied = {str(PurePosixPath(*rest, name)): content for name, content in kept_files(run).items()}
            folders.setdefault(first, {}).update(copied)
        except (InputError, OSError, ValueError) as error:
            errors.append(error)
    return [write_archive(results / first, files) for first, files in folders.items()], errors


def kept_files(run: Path) -> dict[str, bytes]:
    """Returns the files that are kept of a run, by their path in its folder.

    Raises:
        ResultError: the result cannot be read.
        InputError: the run's code was not committed, or its files are damaged.
        OSError: a file is missing.
    """
    commit = read_result(run).commit or ""
    if not commit or commit.endswith("+"):
        raise InputError(
            f"{run}: the code of this run was not committed (result.json records {commit or 'no commit'}); commit the "
            "code and repeat the run from a clean tree"
        )
    files = {name: (run / name).read_bytes() for name in ("result.json", "config.yaml", "metrics.jsonl")}
    for path in sorted((run / "evaluation").glob("*.jsonl")):
        files[f"evaluation/{path.name}"] = "".join(_outcomes(path)).encode()
    if _recorded_all(run):
        files["rollouts/train.jsonl"] = "".join(_groups(run / "rollouts" / "train.jsonl")).encode()
    return files


def _recorded_all(run: Path) -> bool:
    try:
        rollout = read_yaml(run / "config.yaml").get("rollout") or {}
        return bool(rollout) and rollout.get("recorded", 0) >= rollout.get("states", 1)
    except (AttributeError, TypeError) as error:
        raise InputError(f"{run / 'config.yaml'}: the file is damaged ({error}); restore it from a copy") from error


def _groups(path: Path) -> Iterator[str]:
    for place, row in checked_lines(path):
        try:
            turns = [
                {name: turn[name] for name in ("parent", "tokens") if name in turn}
                | {"text": _checksum(symbol(turn["text"])), "observation": _checksum(turn["observation"])}
                for turn in row["turns"]
            ]
            state = {name: row["state"][name] for name in ("id", "task", "type", "turn") if name in row["state"]}
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(
                f"{place}: this line is not a recorded rollout tree ({error!r}); repeat the run"
            ) from error
        kept = {name: row[name] for name in ("iteration", "rewards", "stopped", "looks") if name in row}
        yield json.dumps({**kept, "state": state, "turns": turns}) + "\n"


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _outcomes(path: Path) -> Iterator[str]:
    for _, row in checked_lines(path):
        yield json.dumps({key: row[key] for key in _OUTCOME if key in row}) + "\n"
