"""Writes the configuration and the identity of every kept run again, with today's keys: scripts/migrate_results.py

For each kept run, the configuration of its row is composed. config.yaml is written again from it, result.json gets its
hash, and the pages of docs/ get the new hashes. Use it when keys of the configuration were added, removed or renamed,
and no run would compute anything else; golden runs tell.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from omegaconf import OmegaConf

from turnwise.config.schema import compose_config
from turnwise.experiments.command_line import ask, of_pilots, played
from turnwise.experiments.jobs import jobs
from turnwise.experiments.sweep_file import sweep_names
from turnwise.runs.archive import RunPath, write_archive
from turnwise.runs.config_hash import config_hash

CONF, RESULTS = Path("conf"), RunPath("results")
BESIDE = [
    ["sweep=trace_tab5", "rows=trace_8b,trace_fc_8b", "rollout.states=16"],
    ["sweep=trace_tab5", "rows=trace_8b,treepo_8b", "base=tiny", "env=household", "trainer.max_epochs=6"],
]
left = {path.parent for path in RESULTS.rglob("result.json")}
configs, read, hashes = {}, {}, {}
files: dict[str, dict[str, bytes]] = {}
every = [ask(arguments, CONF) for arguments in [*([f"sweep={name}"] for name in sweep_names(CONF)), *BESIDE]]
every += [played(of_pilots(asked)) for asked in every if asked.sweep.pilots is not None]
for asked in every:
    for job in jobs(asked):
        folder = RESULTS / job.name / f"seed{job.seed}"
        if folder not in left:
            continue
        left.remove(folder)
        key = tuple(item for item in job.overrides if not item.startswith("seed="))
        if key not in configs:
            configs[key] = compose_config(job.overrides, CONF, read=read)
        cfg = configs[key]
        cfg.seed = job.seed
        result = json.loads((folder / "result.json").read_text())
        hashes[result["config_hash"]] = result["config_hash"] = config_hash(cfg)
        paper, *inner = folder.relative_to(RESULTS).parts
        copied = files.setdefault(paper, {})
        copied["/".join([*inner, "result.json"])] = (json.dumps(result, indent=2) + "\n").encode()
        copied["/".join([*inner, "config.yaml"])] = OmegaConf.to_yaml(cfg, resolve=True, sort_keys=False).encode()
assert not left, f"of no row: {left}"
for paper, changed in files.items():
    print(write_archive(RESULTS / paper, changed))
for page in Path("docs").rglob("*.md"):
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"\b[0-9a-f]{12}\b", lambda found: hashes.get(found[0], found[0]), text), encoding="utf-8")
