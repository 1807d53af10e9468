"""What docs/ says of the configuration: every training command passes the check, every default in a table is the default."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.overrides import is_sweep
from turnwise.config.schema import compose_config
from turnwise_study.sweeps.jobs import jobs, read_sweep_request

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOUND = sorted([*DOCS.glob("*.md"), *(DOCS / "methods").glob("*.md")])
PAGES = {path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text(encoding="utf-8") for path in FOUND}
ELSEWHERE = ("extending",)  # commands over files that the page shows; test_docs_extending.py writes them first
COMMANDS = sorted(
    {
        found.strip()
        for page, text in PAGES.items()
        if page not in ELSEWHERE
        for found in re.findall(r"(?:^|`)python train\.py ([^`\n]*)", text, re.MULTILINE)
        if not re.search(r"^-| --cfg|NAME", found)
    }
)


def defaults(text: str) -> Iterator[tuple[str, object]]:
    """Keys and values of the tables that begin with a key and its default (or choice)."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        inside = line.startswith("|") and (inside or cells[:2] in (["key", "default"], ["key", "choice"]))
        key = re.fullmatch(r"`([\w.]+)`", cells[0])
        if inside and key and cells[1]:
            value = yaml.safe_load(cells[1].strip("`"))
            yield key[1], float(value) if isinstance(value, str) and re.fullmatch(r"\de-\d", value) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_docs_passes_the_check(command: str) -> None:
    # folders of public data, which this machine does not have, are looked at as soon as the environment is checked
    arguments = [word for word in shlex.split(command, comments=True) if not word.startswith("env.data=")]
    if is_sweep(arguments):
        arguments = [argument for argument in arguments if not argument.startswith(("hydra/", "hydra.launcher."))]
        found = jobs(read_sweep_request(arguments, ROOT / "conf"))
        arguments = list(next((job for job in found if not job.cannot), found[0]).overrides)
    check_config(compose_config(arguments, ROOT / "conf", read=READ))


@pytest.mark.parametrize(
    ("page", "overrides", "prefixes"),
    [
        ("methods/pivotrl", ["method=pivotrl"], ("states.", "loss.", "advantage.", "rollout.", "data.")),
        ("methods/trace", ["method=trace"], ("predictor.", "advantage.zero")),
        ("methods/awpo", ["method=awpo"], ("advantage.", "reward.")),
        ("data", [], ("data.",)),
        ("engines", [], ("engine.lanes", "engine.memory_gb", "engine.prefill_tokens", "engine.copy", "engine.weights")),
        (
            "engines",
            ["engine=vllm", "loss=corrected"],
            ("engine.url", "engine.attempt", "engine.wait_limit", "loss.correction."),
        ),
    ],
)
def test_the_defaults_of_a_page_are_the_defaults(page: str, overrides: list[str], prefixes: tuple[str, ...]) -> None:
    cfg = compose_config(overrides, ROOT / "conf", read=READ)
    told = {key: value for key, value in defaults(PAGES[page]) if key.startswith(prefixes)}
    for key, value in told.items():
        if isinstance(value, str) and value.startswith("${"):  # the default is the value of another key
            told[key] = OmegaConf.select(cfg, value[2:-1])
    assert len(told) >= 2
    assert told == {key: OmegaConf.select(cfg, key) for key in told}
