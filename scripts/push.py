"""Sends a finished run's policy to the Hugging Face Hub, with a model card.

python scripts/push.py outputs/pivotrl/seed0 --hub me/household-pivotrl --dry-run     prints the card; contacts no server
python scripts/push.py outputs/pivotrl/seed0 --hub me/household-pivotrl               needs `hf auth login`, or HF_TOKEN
"""

from __future__ import annotations

import sys
from pathlib import Path

from turnwise.programs import options, program


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 sent or shown; 2 there is nothing to send, or the server refuses it."""
    parser = options(__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--hub", metavar="OWNER/NAME", required=True, help="repository; created if it does not exist")
    parser.add_argument("--public", action="store_true", help="a new repository is public (by default private)")
    parser.add_argument("--license", help="the Hub's name of a licence, for the card")
    parser.add_argument("--dry-run", action="store_true", help="print the card, and send nothing")
    args = parser.parse_args(arguments)

    from huggingface_hub import get_token

    from turnwise_study.publish import card_of, policy_folder, push

    card, token, folder = card_of(args.run, args.license), get_token(), policy_folder(args.run)
    if args.dry_run or token is None:
        print(card, f"Policy: {folder}", "" if args.dry_run else "Nothing was sent: there is no token.", sep="\n")
        return 0
    print(push(args.run, args.hub, card, token, private=not args.public))
    return 0


if __name__ == "__main__":
    sys.exit(main())
