"""Sends the policy of a finished run to the Hugging Face Hub, with a model card.

python scripts/push.py outputs/pivotrl/seed0 me/household-pivotrl --dry-run    prints files, sizes and card; contacts no server
python scripts/push.py outputs/pivotrl/seed0 me/household-pivotrl              sends the files to a private repository
python scripts/push.py outputs/pivotrl/seed0 me/household-pivotrl --public --license apache-2.0

The program sends the files of the run's adapter/, or of its model/ if all weights were trained, and the card as
README.md. Paths of this machine are shortened to their last component, and secrets are masked. Sending needs a token
with write access (`hf auth login`, or HF_TOKEN). Without a token the program does what --dry-run does. HF_ENDPOINT
names another Hub.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from huggingface_hub import get_token

from turnwise.console import until_stopped
from turnwise.programs import options, program
from turnwise.reports.push_to_hub import Parcel, parcel, push
from turnwise.text import plain


@program()
def main(arguments: list[str]) -> int:
    """Runs the program. Returns its exit status: 0 sent or shown; 2 there is nothing to send, or the Hub refuses it."""
    args = parser().parse_args(arguments)
    ready = parcel(args.run, args.repository, args.license, args.project)
    key = None if args.dry_run else get_token()  # HF_TOKEN, or that of `hf auth login`
    if key is None:
        show(ready, args.public)
        if not args.dry_run:
            print("Nothing was sent, because there is no token: run `hf auth login`, or set HF_TOKEN")
        return 0
    print(f"Sent {len(ready.files)} files: {push(ready, key, private=not args.public)}")
    return 0


def show(ready: Parcel, public: bool) -> None:
    print(f"Repository: {ready.repository} ({'public' if public else 'private'} if it is new)")
    for name, size in ready.sizes.items():
        print(f"  {name}  {size:,} bytes")
    if ready.kept:
        print(f"Not sent: {plain(', '.join(ready.kept))}")
    print(f"{len(ready.files)} files, {sum(ready.sizes.values()):,} bytes\n\n{plain(ready.card, most=10**6)}")


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="folder of a finished run, such as outputs/pivotrl/seed0")
    add("repository", help="owner/name on the Hub; the repository is created if it does not exist")
    add("--dry-run", action="store_true", help="print what would be sent, without contacting a server")
    add("--public", action="store_true", help="a new repository is public (by default private)")
    add("--license", help="the Hub's name of a licence (default: apache-2.0 for a shipped base, none for others)")
    add("--project", metavar="URL", help="address of the code, for a link on the card")
    return parser


if __name__ == "__main__":
    sys.exit(until_stopped(main))
