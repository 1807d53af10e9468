r"""Write the figures of a campaign, of fuzzing and of long runs into docs/reliability.md.

python tests/faults/report.py --campaign outputs/faults --schedules outputs/schedules \
    --fuzz outputs/faults/fuzz-summaries.jsonl --soak outputs/soak

The file of ``--fuzz`` holds last lines of fuzz.py, one a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from turnwise.training.provenance import machine  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"
VERDICTS = ("right", "lost", "wrong", "unclear")


def campaign(records: list[dict[str, Any]]) -> str:
    """The table of a campaign, a row for each scene and fault; runs in which nothing was hurt are told, not counted."""
    every = len(records)
    records = [record for record in records if record["hurts"] or record["verdict"] != "right"]
    rows: dict[tuple[str, str], Counter[str]] = {}
    for record in records:
        row = rows.setdefault((record["scene"], record["fault"]), Counter())
        row.update([record["verdict"], *["starts"] * record["starts"]])
        row["runs"] += 1
    total = sum(rows.values(), Counter())
    lines = ["| scene | fault | runs | starts | right | lost | wrong | unclear |", "|---|---|---|---|---|---|---|---|"]
    for (scene, fault), row in [*sorted(rows.items()), (("all", ""), total)]:
        lines.append(
            f"| {scene} | {fault} | {row['runs']} | {row['starts']} | {' | '.join(str(row[v]) for v in VERDICTS)} |"
        )
    hours = sum(record["seconds"] for record in records) / 3600
    codes = ", ".join(sorted({record["code"] for record in records}))
    seeds = Counter(record["seed"] for record in records)
    ran = {seed: sorted({record["scene"] for record in records if record["seed"] == seed}) for seed in seeds}
    commands = ", ".join(
        f"`python tests/faults/campaign.py --runs {runs} --seed {seed} --scenes {' '.join(ran[seed])}`"
        for seed, runs in sorted(seeds.items())
    )
    last = [record["verdict"] for record in records if record["code"] == records[-1]["code"]]
    return "\n".join(
        [
            *lines,
            "",
            f"Of the {len(last)} runs at the last commit, {records[-1]['code']}, {last.count('right')} are right.",
            "",
            f"{commands}, scale tiny, {hours:.1f} h in all on a shared machine ({machine()}), code at {codes}. In "
            f"{every - len(records)} more nothing was hurt: they had ended before, or the disk was large enough.",
        ]
    )


def fuzz(summaries: list[dict[str, Any]]) -> str:
    """One line of figures over some runs of the fuzzer."""
    sums = {key: sum(summary[key] for summary in summaries) for key in ("cases", "crashes", "hangs", "minutes")}
    parsers = len({name for summary in summaries for name in summary["parsers"]})
    return (
        f"`python tests/faults/fuzz.py --minutes 10`, seeds {', '.join(str(one['seed']) for one in summaries)}: "
        f"{sums['minutes']:.1f} minutes, {sums['cases']:,} cases over "
        f"{parsers} parsers, {sums['crashes']} crashes, {sums['hangs']} hangs ({machine()})."
    )


def soak(records: list[dict[str, Any]]) -> str:
    """A row for each long run, and what happened in it."""
    lines = [
        "| scene | hours | iterations | memory, MiB: first, middle, last | MiB an hour (95 %) | files | threads | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in records:
        low, high = one["rss_growth_ci95"]
        resident = ", ".join(f"{mb:.0f}" for mb in one["rss_mb"])
        lines.append(
            f"| {one['scene']} | {one['simulated_hours']} | {one['iterations']:,} | {resident} "
            f"| {one['rss_growth_mb_per_hour']:+.2f} ({low:+.2f} to {high:+.2f}) | {one['fd_growth']:+d} "
            f"| {one['threads_growth']:+d} | {one['verdict']} |"
        )
    for one in records:
        told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in one["events"].items() if count)
        middle, last = one["disk_mb"]
        below = " to ".join(f"{end:+.2f}" for end in one["rss_of_children_growth_ci95"])
        lines += [
            "",
            f"`python tests/faults/soak.py --hours {one['simulated_hours']} --scene {one['scene']}`: {told}; "
            f"{one['minutes']:.0f} minutes on a shared machine ({machine()}), code at {one['code']}. In the later half "
            f"{one['files_growth']:+d} files on disk ({middle:.1f} to {last:.1f} MiB), "
            f"{one['objects_growth']:+,d} Python objects; memory of the processes that it started: {below} MiB an hour.",
        ]
    return "\n".join(lines)


def written(page: str, name: str, text: str) -> str:
    """The page with ``text`` between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, _, rest = page.partition(begin)
    return f"{head}{begin}{text}\n{end}{rest.partition(end)[2]}"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--campaign", nargs="+", default=["outputs/faults"], help="its --out, once or more (default outputs/faults)")
    add(
        "--schedules",
        default="outputs/schedules",
        help="--out of the campaign of schedules (default outputs/schedules)",
    )
    parser.add_argument("--fuzz", default="outputs/faults/fuzz-summaries.jsonl")
    parser.add_argument("--soak", default="outputs/soak", help="its --out (default outputs/soak)")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    if records := [record for out in args.campaign for record in read(Path(out) / "runs.jsonl")]:
        page = written(page, "campaign", campaign(records))
    if records := read(Path(args.schedules) / "runs.jsonl"):
        page = written(page, "schedules", campaign(records))
    if summaries := read(Path(args.fuzz)):
        page = written(page, "fuzz", fuzz(summaries))
    if records := [json.loads(path.read_text()) for path in sorted(Path(args.soak).glob("*.json"))]:
        page = written(page, "soak", soak(records))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
