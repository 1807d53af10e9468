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

from pydantic import TypeAdapter, ValidationError

from turnwise.console import sized
from turnwise.errors import InputError, first_mistake, refuse_twice
from turnwise.programs import program
from turnwise.runs.archive import opened
from turnwise_study.gates.report import Settings, gate_report, gate_report_tables
from turnwise_study.tables import show


@program(__doc__)
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 an argument or the data cannot be used."""
    refuse_twice(arguments)
    known = ("data", "gated", *Settings.__dataclass_fields__)
    if strange := [word for word in arguments if word.partition("=")[0] not in known or "=" not in word]:
        raise InputError(f"{strange[0]}: write key=value, where key is one of {', '.join(known)}")
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    data, gated = given.pop("data", ""), given.pop("gated", "")
    if not data:
        raise InputError("data=PATH is missing; give a file of rollouts, or a run's folder")
    values = {key: value.split(",") if key in ("steps", "thresholds") else value for key, value in given.items()}
    try:
        settings = TypeAdapter(Settings).validate_python(values)
    except ValidationError as error:
        raise InputError(first_mistake(error)[1]) from error
    report = gate_report(opened(data), settings, opened(gated) if gated else None)
    show(gate_report_tables(report), sized(120))
    print(json.dumps(dict(report), allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
