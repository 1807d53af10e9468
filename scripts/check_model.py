"""Checks whether a model can be trained exactly, or is refused. The last line of the output is one JSON object.

python scripts/check_model.py model=Qwen/Qwen3-0.6B
python scripts/check_model.py families
python scripts/check_model.py families only=llama,gemma2 --write

model     an id on the Hugging Face Hub or a folder: the model is probed as a run probes it, with and without LoRA
dtype     dtype of the weights (float32)
families  probes a small random model of every causal architecture of transformers, and compares the result with plain
          passes of the model
only      names of architectures, separated by commas; unset: all
limit     seconds that one architecture may take (300)
--write   writes the table into docs/models.md; with only=, only the rows of these architectures are replaced
Exit status: 0 exact (families: no wrong result, no traceback); 1 otherwise; 2 an argument or a model cannot be used.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from turnwise.console import sized, until_stopped
from turnwise.errors import InputError, refuse_twice
from turnwise.files import atomic_write
from turnwise.programs import program

if TYPE_CHECKING:
    from turnwise.rollouts.check_architecture import FamilyVerdict

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- families: written by scripts/check_model.py -->", "<!-- end of families -->"
COLUMNS = ("family", "verdict", "lora", "loss", "gradient", "sampled", "why")


@dataclass
class Settings:
    model: str = ""
    dtype: str = "float32"
    families: bool = False
    only: tuple[str, ...] = ()
    limit: float = 300.0
    write: bool = False


@program(__doc__)
def main(arguments: list[str]) -> int:
    """Runs the program. The docstring of the module describes the exit status.

    Slow libraries are imported after the arguments have been parsed.
    """
    settings = parse(arguments)
    return judge_all(settings) if settings.families else judge_model(settings)


def parse(arguments: Sequence[str]) -> Settings:
    """Parses the settings of the command line.

    Raises:
        InputError: an argument is unknown, cannot be used, or is given twice.
    """
    refuse_twice(arguments)
    settings = Settings()
    for argument in arguments:
        key, _, value = argument.partition("=")
        if argument in ("families", "--write"):
            setattr(settings, argument.strip("-"), True)
        elif key in ("model", "dtype") and value:
            setattr(settings, key, value)
        elif key == "only" and value:
            settings.only = tuple(value.split(","))
        elif key == "limit" and value.isdecimal():
            settings.limit = float(value)
        else:
            raise InputError(
                f"{argument}: this argument is unknown, or its value cannot be used; write model=ID_OR_FOLDER or "
                "families (--help describes all arguments)"
            )
    if settings.dtype not in ("float32", "bfloat16", "float16"):
        raise InputError(f"dtype={settings.dtype}: must be float32, bfloat16 or float16")
    if bool(settings.model) == settings.families:
        raise InputError("model=, families: give exactly one of model=ID_OR_FOLDER and families")
    if settings.only:
        from turnwise.models.random_models import architectures

        if strange := set(settings.only) - set(architectures()):
            raise InputError(f"only={min(strange)}: the installed transformers has no such causal architecture")
    return settings


def judge_model(settings: Settings) -> int:
    """Probes one model as a run does, without and with LoRA. Raises InputError if the model cannot be loaded."""
    from turnwise.models.hub import at_hand
    from turnwise.models.policy import load_policy, with_adapter
    from turnwise.models.random_models import filled
    from turnwise.models.shipped import weights_of
    from turnwise.rollouts.check_architecture import ALPHA, RANK
    from turnwise.rollouts.probe import probe
    from turnwise.training.exactness import refusal

    named = f"model={settings.model}"
    model, _ = load_policy(at_hand(weights_of(settings.model), "model"), settings.dtype)
    found = probe(model)
    print(f"{named}: exact" if found is None else refusal(model, named, found))
    lora: str | None = None
    if found is None:
        try:
            lora = str(probe(filled(with_adapter(model, RANK, ALPHA, 0.0))) or "exact")
        except Exception as error:  # peft raises various exceptions for layers that it does not know
            lora = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"with LoRA: {lora}")
    print(json.dumps({"model": settings.model, "exact": found is None, "why": str(found or ""), "lora": lora}))
    return int(found is not None)


def judge_all(settings: Settings) -> int:
    """Probes every architecture in its own process, so that an architecture cannot end or delay the others."""
    from turnwise.models.random_models import architectures

    verdicts: list[FamilyVerdict] = []
    for kind in settings.only or architectures():
        for verdict in guarded(kind, settings.limit):
            verdicts.append(verdict)
            print(f"{verdict.family}: {verdict.verdict} {verdict.why}".rstrip(), file=sys.stderr, flush=True)
    table = Table(*COLUMNS)
    for verdict in verdicts:
        table.add_row(*cells(verdict))
    sized(200).print(table)
    if settings.write:
        write(verdicts, anew=not settings.only)
    counts = {
        "families": len(verdicts),
        **{kind: sum(v.verdict == kind for v in verdicts) for kind in ("exact", "refused", "wrong")},
        "tracebacks": sum(v.verdict == "traceback" for v in verdicts),
    }
    print(json.dumps(counts))
    return int(bool(counts["wrong"] or counts["tracebacks"]))


def guarded(kind: str, limit: float) -> list[FamilyVerdict]:
    """Returns the rows of a model type, computed in a process that is killed after ``limit`` seconds."""
    from turnwise.rollouts.check_architecture import FamilyVerdict  # its slow imports are shared by all processes

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_rows, args=(kind, there), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(limit):
            return [FamilyVerdict(kind, "refused", why=f"not built or judged within {limit:g} s")]
        found: list[FamilyVerdict] = here.recv()
        return found
    except EOFError:
        process.join()
        return [FamilyVerdict(kind, "traceback", why=f"its process ended with exit code {process.exitcode}")]
    finally:
        process.kill()
        process.join()


def _rows(kind: str, there: Any) -> None:
    # Ctrl-C reaches all processes of the group; the parent process ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from transformers import logging

    from turnwise.rollouts.check_architecture import judge_family, rows_of

    logging.set_verbosity_error()
    there.send([judge_family(kind, name, changes) for name, changes in rows_of(kind)])


def cells(verdict: FamilyVerdict) -> list[str]:
    """Returns the cells of one row of the table in docs/models.md."""
    values = asdict(verdict)
    return [
        ("" if math.isnan(values[key]) else f"{values[key]:.0e}") if isinstance(values[key], float) else values[key]
        for key in COLUMNS
    ]


def write(verdicts: Sequence[FamilyVerdict], anew: bool) -> None:
    """Writes rows into the table of docs/models.md. With ``anew``, all other rows are removed."""
    from transformers import __version__

    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    old, after = rest.split(END)
    rows = {} if anew else {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| ")}
    rows.pop(COLUMNS[0], None)  # the header of the table
    rows |= {verdict.family: f"| {' | '.join(cells(verdict))} |" for verdict in verdicts}
    counts = {name: sum(line.split("|")[2].strip() == name for line in rows.values()) for name in ("exact", "refused")}
    head = f"transformers {__version__}: {len(rows)} rows, {counts['exact']} exact, {counts['refused']} refused.\n"
    lines = [head, f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *(rows[name] for name in sorted(rows))]
    with atomic_write(PAGE) as part:
        part.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(until_stopped(main))
