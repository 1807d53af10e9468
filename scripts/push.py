"""Sends what runs left: a policy with a model card to the Hugging Face Hub, or tables and files to Weights & Biases.

python scripts/push.py outputs/pivotrl/seed0 --hub me/household-pivotrl --dry-run     prints the card; contacts no server
python scripts/push.py outputs/pivotrl/seed0 --hub me/household-pivotrl               needs `hf auth login`, or HF_TOKEN
python scripts/push.py outputs/pivotrl outputs/sft --wandb turnwise --offline         `wandb sync` uploads it later
"""

from __future__ import annotations

import sys
from pathlib import Path

from turnwise.errors import InputError
from turnwise.programs import options, program


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 sent or shown; 2 there is nothing to send, or the server refuses it."""
    parser = options(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folder of a finished run; for W&B also several")
    parser.add_argument("--hub", metavar="OWNER/NAME", help="repository on the Hub; created if it does not exist")
    parser.add_argument("--wandb", metavar="PROJECT", help="W&B project")
    parser.add_argument("--public", action="store_true", help="a new repository is public (by default private)")
    parser.add_argument("--license", help="the Hub's name of a licence, for the card")
    parser.add_argument("--dry-run", action="store_true", help="print the card and the files, and send nothing")
    parser.add_argument("--offline", action="store_true", help="write a W&B bundle to outputs/wandb")
    parser.add_argument("--title", default="Turnwise runs", help="name of the W&B run")
    args = parser.parse_args(arguments)
    if (args.hub is None) == (args.wandb is None) or (args.hub and len(args.folders) > 1):
        raise InputError("give --hub OWNER/NAME with one run, or --wandb PROJECT")

    from huggingface_hub import get_token

    from turnwise_study.comparison import run_table
    from turnwise_study.publish import card_of, policy_folder, publish_wandb, push
    from turnwise_study.runs import collect

    if args.wandb:
        runs = collect(args.folders)
        tables = [run_table(env, scale, rows) for (env, scale), rows in runs.sections.items()]
        print(publish_wandb(runs, tables, args.wandb, args.title, Path("outputs/wandb"), args.offline))
        return 0
    run, token = args.folders[0], get_token()
    card = card_of(run, args.license)
    if args.dry_run or token is None:
        print(
            card,
            f"Files of {policy_folder(run)}",
            "" if args.dry_run else "Nothing was sent: there is no token.",
            sep="\n",
        )
        return 0
    print(push(run, args.hub, card, token, private=not args.public))
    return 0


if __name__ == "__main__":
    sys.exit(main())
