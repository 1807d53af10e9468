"""Ways out of the sandbox, tried in it: python -m tests.security.escapes

Each family is a function that runs programs inside and looks outside whether they had an effect. As root it tries all of them a
second time as an ordinary user. The last line is one JSON object; the exit status is 1 where something got out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path

from tests.security import host, limits, states
from tests.security.ground import LIMITS, Family, Ground, prepared

from turnwise_worlds.sandbox.sandbox import NOBODY, open_sandbox

ROOT = Path(__file__).resolve().parents[2]
FAMILIES: dict[str, Family] = {
    f"{module.__name__.rpartition('.')[2]}.{family.__name__}": family
    for module in (host, limits, states)
    for family in module.FAMILIES
}


def tried(ground: Ground, name: str) -> dict[str, bool]:
    """The probes of a family, and which of them got out."""
    return dict(FAMILIES[name](ground))


def as_ordinary_user(*words: str) -> list[str]:
    """The command that tries all families as an ordinary user, with an interpreter that this one may read."""
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    paths = os.pathsep.join(
        [str(ROOT), str(ROOT / "src"), sysconfig.get_path("purelib")]
    )  # the last for annotated-types
    return [*drop, "env", f"PYTHONPATH={paths}", "/usr/bin/python3", "-m", "tests.security.escapes", *words]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("families", nargs="*", help="only these (all)")
    parser.add_argument("--once", action="store_true", help="as this user only")
    args = parser.parse_args()
    if unknown := set(args.families) - set(FAMILIES):
        parser.error(f"no such family: {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    sandbox = open_sandbox(limits=LIMITS)
    results: dict[str, dict[str, bool]] = {}
    with ExitStack() as stack:
        stack.callback(sandbox.close)
        ground = prepared(sandbox, stack)
        for name in args.families or FAMILIES:
            results[name] = tried(ground, name)
            out = [probe for probe, got_out in results[name].items() if got_out]
            print(f"{name}: {len(results[name])} probes, got out: {', '.join(out) or 'none'}", flush=True)
    total = {
        "backend": sandbox.name,
        "families": len(results),
        "probes": sum(map(len, results.values())),
        "fell": sum(sum(family.values()) for family in results.values()),
        "users": ["root" if os.getuid() == 0 else "ordinary"],
    }
    if os.getuid() == 0 and not args.once:
        second = subprocess.run(as_ordinary_user(*args.families), stdout=subprocess.PIPE, text=True, check=False)
        print(second.stdout, end="")
        if second.returncode not in (0, 1):
            return second.returncode
        other = json.loads(second.stdout.splitlines()[-1])
        total |= {key: total[key] + other[key] for key in ("probes", "fell", "users")}
    print(json.dumps(total))
    return int(total["fell"] > 0)


if __name__ == "__main__":
    sys.exit(main())
