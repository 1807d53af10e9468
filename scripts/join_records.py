"""Joins files of questions or problems (env.files) into one file of JSON lines.

python scripts/join_records.py aime24=aime24.parquet amc23=amc23.jsonl olympiadbench.parquet --out unseen.jsonl

Each split of env.files is one file. Environments detect the format of each record from its keys, so files of different
formats can be joined. Records are copied unchanged, but those of NAME=FILE get the key data_set with this name, by which
evaluations report success. The environment that reads the file refuses records of an unknown format, and its error
message states their lines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from turnwise.errors import InputError
from turnwise.files import atomic_write, refuse_same
from turnwise.programs import options, program
from turnwise_worlds.data_files import ENDINGS, read_data_file


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 a file cannot be read or written, and nothing is written."""
    parser = options(__doc__)
    parser.add_argument("files", nargs="+", metavar="[NAME=]FILE", help=ENDINGS)
    parser.add_argument("--out", required=True, type=Path, help="the file of JSON lines to write")
    args = parser.parse_args(arguments)
    count = 0
    named = [
        (name if equals else "", Path(path if equals else name))
        for name, equals, path in (given.partition("=") for given in args.files)
    ]
    refuse_same(args.out, [path for _, path in named])
    with atomic_write(args.out) as part, part.open("w", encoding="utf-8") as file:
        for name, path in named:
            for _, record in read_data_file(path, "the command"):
                record |= {"data_set": name} if name else {}
                file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
                count += 1
        if not count:
            raise InputError(f"{', '.join(args.files)}: these files contain no records; {args.out} is not written")
    print(f"{args.out}: {count} records of {len(args.files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
