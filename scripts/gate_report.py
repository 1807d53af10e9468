"""Evaluates gates, which stop groups of rollouts early, on recorded rollouts. Prints tables, and a JSON object as the
last line.

python scripts/gate_report.py data=outputs/grpo/seed0
python scripts/gate_report.py data=outputs/grpo/seed0/rollouts/train.jsonl k=6 steps=2,4,6,8
python scripts/gate_report.py data=outputs/never gated=outputs/divergence

data        a file of recorded rollouts, or the folder of a run or of its seeds
gated       recorded rollouts of runs that differ from those of data only in having a gate; the saving of the gate is
            measured, and the groups that the gate stopped are compared with the complete groups in data
k           step of the gate's decision (10)
threshold   threshold of d_K (0.12)
ended       threshold of the share of ended rollouts in the OR rule (0.9)
steps       values of K in the table of signals (5,10,15,20)
thresholds  thresholds of d_K that are compared at step k (0.05,0.08,0.10,0.12,0.14,0.18)
horizon     turns of an episode; unset: the length of the longest rollout
resamples   number of resamples of the bootstrap (2000)
seed        seed of the bootstrap (0)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from turnwise.console import sized
from turnwise.errors import InputError, refuse_twice
from turnwise.programs import program
from turnwise.runs.archive import RunPath
from turnwise_study.gates.report import Settings, gate_report, gate_tables
from turnwise_study.tables import to_rich


@program(__doc__)
def main(arguments: list[str]) -> int:
    """Runs the program. Returns its exit status: 0 done; 2 an argument or the data cannot be used."""
    data, gated, settings = parse(arguments)
    report = gate_report(data, settings, gated)
    console = sized(120)
    for table in gate_tables(report):
        console.print(to_rich(table))
        console.print(*table.notes, "", sep="\n")
    print(json.dumps(report, allow_nan=False))
    return 0


def parse(arguments: list[str]) -> tuple[Path, Path | None, Settings]:
    """Parses ``key=value`` arguments into the path of the data, the path of the gated arm or None, and the settings.

    Raises:
        InputError: an argument is not of the form ``key=value``, a key is unknown or given twice, a value has the wrong
            type, or ``data`` is missing.
    """
    refuse_twice(arguments)
    known = ("data", "gated", *Settings.__dataclass_fields__)
    if strange := [
        argument for argument in arguments if argument.partition("=")[0] not in known or "=" not in argument
    ]:
        raise InputError(f"{strange[0]}: write key=value, where key is one of {', '.join(known)}")
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    data, gated = given.pop("data", ""), given.pop("gated", "")
    if not data:
        raise InputError("data=PATH is missing; give a file of rollouts, or a run's folder")
    values = {key: value.split(",") if key in ("steps", "thresholds") else value for key, value in given.items()}
    try:
        settings = TypeAdapter(Settings).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        raise InputError(f"{f'{key}={given[key]}: ' if key in given else ''}{first['msg']}") from error
    return RunPath(data), RunPath(gated) if gated else None, settings


if __name__ == "__main__":
    sys.exit(main())
