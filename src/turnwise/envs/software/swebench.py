"""Scores patches on real SWE-bench instances (arXiv:2310.06770) with the benchmark's own harness, which needs Docker.

The harness is the package ``swebench`` (MIT licence, ``requirements-swebench.txt``). It runs as a separate program and
may be installed in its own Python environment.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from turnwise.errors import InputError
from turnwise.files import atomic_write

INSTALL = "pip install -r requirements-swebench.txt"
_LOGS = Path("logs/run_evaluation")  # the folder of the harness's logs, inside the folder in which the harness runs
_PATCH_FAILED, _TIMED_OUT = ">>>>> Patch Apply Failed", "Timeout error:"
_PROBE = """
import importlib.util, sys
if importlib.util.find_spec("swebench") is None:
    sys.exit("the package swebench is not installed in this Python environment")
import docker
try:
    docker.from_env().ping()
except Exception as error:
    sys.exit(f"Docker does not answer ({error})")
"""


class NoHarnessError(InputError):
    """The harness of SWE-bench cannot run on this machine. The message says why, and what to install."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The results of SWE-bench's harness. Each instance with a patch is resolved, failed or a fault.

    A fault is an error of the test system and says nothing about the patch. The success rate in the harness's report
    counts faults as failures. The property ``rate`` leaves faults out.
    """

    resolved: tuple[str, ...]
    # instances whose tests fail or time out with the patch, or whose patch is empty or does not apply
    failed: tuple[str, ...]
    faults: Mapping[str, str]  # instance -> cause, such as the container, the network, or the harness

    @property
    def rate(self) -> float | None:
        """Returns the fraction of resolved instances among those without a fault, or None if all have a fault."""
        judged = len(self.resolved) + len(self.failed)
        return len(self.resolved) / judged if judged else None


@dataclass(frozen=True, slots=True)
class Harness:
    """The harness of SWE-bench with its settings.

    Attributes:
        dataset: a data set of the Hugging Face Hub, or a file of instances (``.json``, ``.jsonl``, ``.parquet``).
        split: the split of the data set.
        workers: number of containers that run at once.
        timeout: time limit in seconds of the tests of one instance.
        python: the Python interpreter that has swebench installed; None means the interpreter of this process.

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
        """Raises ``NoHarnessError`` if swebench is not installed or no Docker daemon answers."""
        python = self.python or sys.executable
        try:
            found = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoHarnessError(
                f"swebench: the Python interpreter {python} cannot be run ({error.strerror}); name another interpreter"
            ) from error
        if found.returncode:
            why = (found.stderr.strip() or "the interpreter ended without a message").splitlines()[-1]
            raise NoHarnessError(
                f"swebench: real instances cannot be scored with {python}: {why}. Install Docker, start its daemon, and "
                f"run `{INSTALL}`; env=software needs neither Docker nor swebench"
            )

    def command(self, predictions: Path, run: str, instances: Sequence[str]) -> list[str]:
        """Returns the command line that scores the patches in the file ``predictions`` under the run name ``run``.

        The harness writes its files into its working folder.
        """
        return [
            *(self.python or sys.executable, "-m", "swebench.harness.run_evaluation"),
            *("--dataset_name", self.dataset, "--split", self.split),
            *("--predictions_path", str(predictions), "--run_id", run, "--report_dir", "."),
            *("--max_workers", str(self.workers), "--timeout", str(self.timeout)),
            *("--instance_ids", *instances),
        ]

    def score(self, patches: Mapping[str, str], model: str, folder: Path) -> Verdicts:
        """Runs the harness on one patch for each instance, and returns the verdicts.

        Args:
            patches: instance id -> patch in git's format; empty if the policy made no patch.
            model: name of the model that wrote the patches.
            folder: folder for predictions, logs and report. Instances whose result for these patches is already in the
                folder are not scored again.

        Raises:
            NoHarnessError: swebench or Docker is missing.
            InputError: there are no patches, or the harness wrote no report.
        """
        if not patches:
            raise InputError("swebench: there are no patches to score; give at least one")
        self.check()
        folder = folder.resolve()
        # The harness stores a verdict under the run name and the instance, not under the patch. So other patches need
        # another run name.
        text = json.dumps([self.dataset, self.split, model, sorted(patches.items())])
        run = f"turnwise-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        predictions = folder / f"{run}.jsonl"
        write_predictions(predictions, patches, model)
        done = subprocess.run(self.command(predictions, run, sorted(patches)), cwd=folder, check=False)
        name = model.replace("/", "__")
        report = folder / f"{name}.{run}.json"
        if done.returncode or not report.exists():
            raise InputError(
                f"swebench: the harness must end with status 0 and write the report {report}, but it ended with status "
                f"{done.returncode}{'' if report.exists() else ' and without the report'}; its output gives the reason"
            )
        return read_report(report, folder / _LOGS / run / name)


def write_predictions(path: Path, patches: Mapping[str, str], model: str) -> None:
    """Writes the file of patches for the harness. Each line is a JSON object: an instance, the model and a patch."""
    rows = [{"instance_id": key, "model_name_or_path": model, "model_patch": patch} for key, patch in patches.items()]
    with atomic_write(path) as part:
        part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_report(path: Path, logs: Path) -> Verdicts:
    """Returns the verdicts in a report (schema version 2) of the harness.

    If the log of an instance that ended in an error says that the patch does not apply or that the tests time out, the
    patch has failed. Any other error is a fault. ``logs`` is the folder with one folder of logs for each instance.

    Raises:
        InputError: the file is not a report of this schema version.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        submitted, resolved = set(report["submitted_ids"]), set(report["resolved_ids"])
        broken, errors = set(report["infra_failure_ids"]), set(report["error_ids"])
        reasons = dict(report["failure_reasons"])
        known = {*resolved, *report["unresolved_ids"], *report["empty_patch_ids"], *errors}
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{path}: the file is not a report of swebench 5 ({what}); run `{INSTALL}`, and score the patches again"
        ) from error
    faults = {key: reasons.get(key, "the test environment failed") for key in broken - resolved}
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
    """Returns the change between two sets of files (path -> text) as a patch for ``git apply``.

    A file that only ``after`` contains is created, and a file that only ``before`` contains is deleted.
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
        # as in git, only a newline ends a line, so ``str.splitlines`` cannot be used
        lines = difflib.unified_diff(StringIO(old).readlines(), StringIO(new).readlines(), *names)
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)
