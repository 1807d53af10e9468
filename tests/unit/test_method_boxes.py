"""The algorithm box above each method is what the method composes to, and leads to the files and equations that it names.

A line of a box is ``# N. what is done (Eq. n)  files  settings``, with two blanks or more between the columns. A box that begins
with "The algorithm is that of X, but for these steps" has the other steps of X. The tables of docs/methods are the boxes.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_class
from omegaconf import OmegaConf

from turnwise.config.schema import register

ROOT = Path(__file__).resolve().parents[2]
SOURCE, CONF, PAGES = ROOT / "src" / "turnwise", ROOT / "conf", ROOT / "docs" / "methods"
BOXES = {f"{path.parent.name}={path.stem}": path for path in sorted((CONF / "method").glob("*.yaml"))}
GROUPS = ("states", "allocator", "gate", "reward", "advantage", "loss", "judge", "predictor")
ABSENT = {"gate": "never"}  # what stands in a group that a method does not use; ``none`` in the others
BUT = re.compile(r"^# The algorithm is that of (\w+), but for these steps:$", re.MULTILINE)
STEP = re.compile(r"^# (\d+)\. (.+)$", re.MULTILINE)
EQUATIONS = re.compile(r"Eqs?\. (\d+(?:(?:-|, | and )\d+)*)")


class Step(NamedTuple):
    does: str
    files: tuple[str, ...]
    settings: tuple[str, ...]


HEAD = "| | what it does | files of `src/turnwise` | parts and keys |\n|---|---|---|---|"


def row(number: int, step: Step) -> str:
    """A step as a row of the tables in docs/methods."""
    quoted = (", ".join(f"`{one}`" for one in column) for column in (step.files, step.settings))
    return f"| {number} | {' | '.join((step.does.replace('|', chr(92) + '|'), *quoted))} |"


class Composed(NamedTuple):
    values: Any
    choices: Mapping[str, str]


@cache
def composed(override: str) -> Composed:
    """Its values, and the option chosen in each group."""
    register(CONF)
    GlobalHydra.instance().clear()
    hydra_config = HydraConfig.instance()
    outer = hydra_config.cfg
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", [override], return_hydra_config=True)
        try:
            hydra_config.set_config(cfg)
            return Composed(cfg, OmegaConf.to_container(cfg.hydra.runtime.choices))  # type: ignore[arg-type]
        finally:
            hydra_config.cfg = outer


def steps(text: str) -> dict[int, Step]:
    """The steps of a box, those of the method that it extends among them."""
    extended = BUT.search(text)
    found = steps(BOXES[f"method={extended[1]}"].read_text(encoding="utf-8")) if extended else {}
    own = {}
    for number, rest in STEP.findall(text):
        does, files, settings = re.split(r"  +", rest)
        own[int(number)] = Step(does, tuple(files.split(", ")), tuple(settings.split(", ")))
    assert not extended or own.keys() <= found.keys(), "a step that the extended method does not have"
    return dict(sorted((found | own).items()))


def numbers(text: str) -> set[int]:
    """The equations that a text names; 18-20 names three."""
    named = set()
    for listed in EQUATIONS.findall(text):
        for part in re.split(r", | and ", listed):
            low, _, high = part.partition("-")
            named |= set(range(int(low), int(high or low) + 1))
    return named


@cache
def taught(path: Path) -> frozenset[int]:
    """The equations that the docstrings of a file name."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
    return frozenset().union(*(numbers(" ".join((ast.get_docstring(node) or "").split())) for node in nodes))


def wrong(box: Mapping[int, Step], cfg: Composed) -> list[str]:
    """What a box says and the composition or the files do not."""
    found = [] if box and list(box) == list(range(1, len(box) + 1)) else [f"steps are numbered {list(box)}"]
    for number, step in box.items():
        lost = [file for file in step.files if not (SOURCE / file).is_file()]
        known = set().union(*(taught(SOURCE / file) for file in step.files if file not in lost))
        told = [f"no file {file}" for file in lost]
        told += [f"Eq. {n} is in no docstring of {step.files}" for n in sorted(numbers(step.does) - known)]
        for setting in step.settings:
            key, _, value = setting.partition("=")
            told += differs(key, value, cfg) if "." in key else not_the_part(key, value, step.files, cfg)
        found += [f"step {number}: {problem}" for problem in told]
    named = {setting for step in box.values() for setting in step.settings}
    used = {f"{group}={cfg.choices[group]}" for group in GROUPS if cfg.choices[group] != ABSENT.get(group, "none")}
    return [*found, *(f"no step names {part}" for part in sorted(used - named))]


def differs(key: str, value: str, cfg: Composed) -> list[str]:
    """Whether a key is absent or has another value."""
    node, _, last = key.rpartition(".")
    parent = OmegaConf.select(cfg.values, node)
    if parent is None or last not in parent:
        return [f"no key {key}"]
    return [] if parent[last] == yaml.safe_load(value) else [f"{key} is {parent[last]}, not {value}"]


def not_the_part(group: str, option: str, files: Iterable[str], cfg: Composed) -> list[str]:
    """Whether another part stands in a group, or the files are not its own."""
    if cfg.choices.get(group) != option:
        return [f"{group} is {cfg.choices.get(group)}, not {option}"]
    if cfg.values[group] is None or group == "predictor":  # whose target is a group of numbers; the run builds the rest
        return []
    own = Path(inspect.getfile(get_class(cfg.values[group]._target_))).resolve().relative_to(SOURCE).as_posix()
    return [] if own in files else [f"{group}={option} lies in {own}"]


@pytest.mark.parametrize("override", BOXES)
def test_a_box_is_what_its_method_composes_to(override: str) -> None:
    text = BOXES[override].read_text(encoding="utf-8")
    assert wrong(steps(text), composed(override)) == []


@pytest.mark.parametrize("override", BOXES)
def test_a_page_has_the_steps_of_each_box_as_a_table(override: str) -> None:
    text = BOXES[override].read_text(encoding="utf-8")
    found, numbered = steps(text), [int(number) for number, _ in STEP.findall(text)]
    wanted = "\n".join([HEAD, *(row(number, found[number]) for number in numbered)])
    assert any(wanted in path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")), wanted
