"""Computes the credit that an advantage rule gives to recorded rollout trees, and says where it agrees with the rule that
the run used, and with an audit if the file has one.

python scripts/rescore.py outputs/grpo/seed0 advantage=gigpo
python scripts/rescore.py trees.jsonl advantage=mt_grpo advantage.turn_reward=admissible --out credit.jsonl
python scripts/rescore.py results/turnwise/credit/gigpo_search/seed0 advantage=gigpo --used advantage=group

The first argument is the folder of a run, or a file with one tree a line (docs/methods/credit.md has its form, which
other programs can write); the others are overrides as those of train.py. A run keeps rollout.recorded trees of each
iteration, and advantage rules that compare trees see only those. The last line of the output is one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from turnwise.config.overrides import build_alone
from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.methods.credit import Advantage
from turnwise.programs import options, program
from turnwise_study.recorded_trees import (
    agreement_by_place,
    audited_credit_pairs,
    credits_of_recorded,
    read_trees,
    recorded_credit_pairs,
)

CONF = Path(__file__).resolve().parent.parent / "conf"


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 an argument or the file cannot be used."""
    parser = options(__doc__)
    add = parser.add_argument
    add("trees", type=Path, help="folder of a run, or file of trees")
    add("overrides", nargs="*", help="advantage=NAME and its settings")
    add("--used", metavar="'advantage=NAME ...'", help="compare with this rule, for trees without advantages")
    add("--out", type=Path, help="write the credit of every turn, one tree a line")
    args = parser.parse_args(arguments)
    rule, recorded = rule_of(args.overrides), read_trees(args.trees)
    try:
        credits = credits_of_recorded(rule, recorded)
    except ValueError as error:
        raise InputError(f"{args.trees}: {error}") from error
    turns = [weight for credit in credits for weight in credit.weight]
    silent = sum(not any(credit.advantage) for credit in credits)
    print(
        f"{len(recorded):,} trees, {len(turns):,} turns; {sum(map(bool, turns)):,} turns get weight; "
        f"in {silent:,} trees every advantage is 0"
    )
    used = credits_of_recorded(rule_of(args.used.split()), recorded) if args.used else None
    compared = {
        "used": agreement_by_place(recorded_credit_pairs(credits, recorded, used)),
        "audit": agreement_by_place(audited_credit_pairs(credits, recorded)),
    }
    names = {"used": args.used or "the rule that the run used", "audit": "the true advantages of an audit"}
    for kind, places in compared.items():
        print(f"beside {names[kind]}:{'' if places else ' not in these trees'}")
        for place, numbers in places.items():
            shown = (f"{what} {'-' if number is None else f'{number:.4g}'}" for what, number in numbers.items())
            print(f"  {place}: {', '.join(shown)}")
    if args.out:
        with atomic_write(args.out) as part, part.open("w", encoding="utf-8") as file:
            for one, credit in zip(recorded, credits, strict=True):
                row = {"state": one.tree.state.id, "advantage": credit.advantage, "weight": credit.weight}
                file.write(json.dumps(row) + "\n")
    print(json.dumps({"trees": len(recorded), "turns": len(turns), "silent_trees": silent, **compared}))
    return 0


def rule_of(overrides: Sequence[str]) -> Advantage:
    if not any(word.startswith("advantage=") for word in overrides):
        raise InputError("no rule is given: add advantage=NAME, one of the files in conf/advantage")
    rule: Advantage | None = build_alone("advantage", ["method=grpo", *overrides], CONF)
    if rule is None:
        raise InputError("advantage=none gives no credit; choose another rule")
    return rule


if __name__ == "__main__":
    sys.exit(main())
