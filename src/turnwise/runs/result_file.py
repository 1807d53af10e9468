"""The schema of ``result.json``, which is written atomically and read with checks.

Success rates are percentages (0 to 100), changes are differences in percentage points, and times are in seconds. Keys
that the schema does not know are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.runs.archive import opened


def _ordered(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] > interval[1]:
        raise ValueError("an interval [low, high] must not have low above high")
    return interval


Points = Annotated[float, Field(ge=0, le=100)]
Change = Annotated[float, Field(ge=-100, le=100)]
Interval = Annotated[tuple[Change, Change], AfterValidator(_ordered)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


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
        if self.delta is None and self.base is not None and self.after is not None:
            self.delta = self.after - self.base
        if None not in (self.base, self.after) and abs(self.after - self.base - self.delta) > 0.11:  # type: ignore[operator]
            raise ValueError(f"delta is {self.delta}, but after - base is not")  # each may be rounded to one decimal
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


class HeldOut(_Part):
    """Measurements on the replies in held-out dialogues of a user's file."""

    dialogues: Count
    replies: Count
    nll: Nats  # negative log-likelihood of the demonstrated replies
    functional: Comparison  # percentage of the policy's replies that a verifier accepts as equally good
    strict: Comparison  # percentage of the policy's replies that equal the demonstrated reply


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
    cpu_seconds: Seconds | None = None  # CPU time of training; None in results of older versions
    # costs of sampling the run's profiles; None if there was no profile, or if an older version did not record it
    profile_turns: Count | None = None
    profile_tokens: Count | None = None
    profile_cpu_seconds: Seconds | None = None
    faults: dict[str, Count] = {}  # failures of the environment: ``lost``, ``retries``, ``evaluations``
    seconds: dict[str, Seconds] = {}  # time of each phase
    wall_seconds: Seconds | None = (
        None  # time of all starts of the run, of an interrupted one up to its last checkpoint; None in older results
    )
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

    @property
    def title(self) -> str:
        return f"{self.method} on {self.env}, seed {self.seed}"


def write_result(result: Result | dict[str, Any], folder: Path | str) -> Path:
    """Checks ``result`` (ResultError), writes ``<folder>/result.json`` atomically and returns its path."""
    path = Path(folder) / "result.json"
    checked = result if isinstance(result, Result) else _check(result, str(path))
    text = json.dumps(checked.model_dump(mode="json", exclude_unset=False, exclude_none=True), indent=2) + "\n"
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def read_result(path: Path | str) -> Result:
    """Reads a ``result.json``; ``path`` is the file or the run's folder."""
    path = opened(path)
    path = path / "result.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ResultError(
            f"{path}: this file does not exist; the run did not finish: start it again to resume"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path}: not JSON ({error}); start the run again to rewrite the file") from error
    return _check(raw, str(path))


def _check(raw: object, where: str) -> Result:
    try:
        return Result.model_validate(raw)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, e['loc'])) or 'result'}: {e['msg']} (got {e['input']!r:.60})" for e in error.errors()
        ]
        raise ResultError(
            f"{where}: these keys do not follow the schema of result.json:\n" + "\n".join(lines)
        ) from None
