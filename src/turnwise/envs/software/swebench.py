"""Patches scored on real SWE-bench instances by the benchmark's own harness (arXiv:2310.06770), where Docker runs.

The harness (``swebench``, MIT) is an extra, ``requirements-swebench.txt``, best in an environment of its own. It runs as a
program; nothing of it is imported here.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.errors import InputError
from turnwise.files import atomic_write

INSTALL = "pip install -r requirements-swebench.txt"
_LOGS = Path("logs/run_evaluation")  # where the harness writes, below the folder that it runs in
_PATCH_FAILED, _TIMED_OUT = ">>>>> Patch Apply Failed", "Timeout error:"
_PROBE = """
import importlib.util, sys
if importlib.util.find_spec("swebench") is None:
    sys.exit("the package swebench is not installed there")
import docker
try:
    docker.from_env().ping()
except Exception as error:
    sys.exit(f"Docker does not answer ({error})")
"""


class NoHarnessError(InputError):
    """The harness cannot run here. The message says why, and what to install."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The harness's results of each instance that a patch was submitted for.

    A fault says nothing about the patch, and is no failure of it: the harness's own rate counts it as one.
    """

    resolved: tuple[str, ...]
    failed: tuple[str, ...]  # tests fail, the patch is empty or does not apply, or the tests ran out of time under it
    faults: Mapping[str, str]  # instance -> what broke: the container, the network, the harness

    @property
    def rate(self) -> float | None:
        """Share of resolved instances among those that could be judged; None where none could."""
        judged = len(self.resolved) + len(self.failed)
        return len(self.resolved) / judged if judged else None


@dataclass(frozen=True, slots=True)
class Harness:
    """How the harness is run.

    Attributes:
        dataset: a data set of the hub, or a file of instances (``.json``, ``.jsonl``, ``.parquet``).
        split: of it.
        workers: containers at once.
        timeout: seconds for the tests of one instance.
        python: the interpreter that has swebench; None: this one.

    Raises:
        ValueError: a number is below 1.
    """

    dataset: str = "SWE-bench/SWE-bench_Verified"
    split: str = "test"
    workers: int = 4
    timeout: int = 1800
    python: str | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or self.timeout < 1:
            raise ValueError(f"workers and timeout must be at least 1, got {self.workers} and {self.timeout}")

    def check(self) -> None:
        """Raises ``NoHarnessError`` where swebench is not installed or no Docker daemon answers."""
        python = self.python or sys.executable
        try:
            found = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoHarnessError(
                f"swebench: {python} cannot be run ({error.strerror}); name another interpreter"
            ) from error
        if found.returncode:
            why = (found.stderr.strip() or "it died").splitlines()[-1]
            raise NoHarnessError(
                f"swebench: real instances cannot be scored with {python}: {why}. Install Docker, start its daemon, and "
                f"{INSTALL}; env=software plays without either"
            )

    def command(self, predictions: Path, run: str, instances: Sequence[str]) -> list[str]:
        """Returns the harness's command line; it writes into the folder that it runs in."""
        return [
            *(self.python or sys.executable, "-m", "swebench.harness.run_evaluation"),
            *("--dataset_name", self.dataset, "--split", self.split),
            *("--predictions_path", str(predictions), "--run_id", run, "--report_dir", "."),
            *("--max_workers", str(self.workers), "--timeout", str(self.timeout)),
            *("--instance_ids", *instances),
        ]

    def score(self, patches: Mapping[str, str], model: str, folder: Path) -> Verdicts:
        """Score one patch an instance.

        Args:
            patches: instance id -> a patch in git's format; empty where the policy made none.
            model: whose patches they are.
            folder: for predictions, logs and report. The same patches are not run twice there.

        Raises:
            NoHarnessError: swebench or Docker is not there.
            InputError: there is no patch, or the harness wrote no report.
        """
        if not patches:
            raise InputError("swebench: no patch to score")
        self.check()
        folder = folder.resolve()
        # The harness keeps verdicts by run and instance, whatever the patch was: other patches are another run.
        text = json.dumps([self.dataset, self.split, model, sorted(patches.items())])
        run = f"turnwise-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        predictions = folder / f"{run}.jsonl"
        write_predictions(predictions, patches, model)
        done = subprocess.run(self.command(predictions, run, sorted(patches)), cwd=folder, check=False)
        name = model.replace("/", "__")
        report = folder / f"{name}.{run}.json"
        if done.returncode or not report.exists():
            raise InputError(
                f"swebench: the harness ended with status {done.returncode} and no {report}; its output says why"
            )
        return read_report(report, folder / _LOGS / run / name)


def write_predictions(path: Path, patches: Mapping[str, str], model: str) -> None:
    """The file that the harness reads: JSON lines of instance, model and patch."""
    rows = [{"instance_id": key, "model_name_or_path": model, "model_patch": patch} for key, patch in patches.items()]
    with atomic_write(path) as part:
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_report(path: Path, logs: Path) -> Verdicts:
    """Returns the verdicts of a report (schema version 2) of the harness.

    An instance that ended in an error is told apart by its log: a patch that does not apply, or under which the tests run out of
    time, has failed; anything else is a fault.

    Args:
        path: of the report.
        logs: the folder of the run's logs, one folder an instance; a missing log gives no information.

    Raises:
        InputError: it is no such report.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        submitted, resolved = set(report["submitted_ids"]), set(report["resolved_ids"])
        broken, errors = set(report["infra_failure_ids"]), set(report["error_ids"])
        reasons = dict(report["failure_reasons"])
        known = {*resolved, *report["unresolved_ids"], *report["empty_patch_ids"], *errors}
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: no report of swebench 5 ({what}); {INSTALL} and run again") from error
    faults = {key: reasons.get(key, "the environment broke") for key in broken - resolved}
    faults |= {
        key: reasons.get(key, "the harness failed") for key in errors - broken if not _patch_at_fault(logs / key)
    }
    faults |= dict.fromkeys(submitted - known, "not in the data set")
    failed = submitted - resolved - set(faults)
    return Verdicts(tuple(sorted(resolved)), tuple(sorted(failed)), dict(sorted(faults.items())))


def _patch_at_fault(logs: Path) -> bool:
    for name, sign in (("run_instance.log", _PATCH_FAILED), ("test_output.txt", _TIMED_OUT)):
        try:
            if sign in (logs / name).read_text(encoding="utf-8", errors="replace"):
                return True
        except OSError:
            continue
    return False


def patch_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Returns the change between two trees of text files as a patch that ``git apply`` reads; empty where nothing changed.

    Args:
        before, after: path -> text; a path that stands on one side only was made or deleted.
    """
    parts: list[str] = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        parts.append(f"diff --git a/{path} b/{path}\n")
        if old is None or new is None:
            parts.append("new file mode 100644\n" if old is None else "deleted file mode 100644\n")
        names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
        lines = difflib.unified_diff(_lines(old), _lines(new), *names)
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)


def _lines(text: str | None) -> list[str]:
    """Lines with their ends; the last may lack it. Only a newline ends one, as for git."""
    *ended, rest = (text or "").split("\n")
    return [*(line + "\n" for line in ended), *[rest] * bool(rest)]
