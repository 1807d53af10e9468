"""The algorithm box of each method is what the method composes to, and leads to the files and equations that it names.

The box stands in the docstring of the method's file, and that of a preset in the docstring of its class. A step is ``N. what is
done (Eq. n)`` and, on a line of its own, ``[files] settings``. A box that begins with "The algorithm is that of X, but for these
steps" has the other steps of X. The tables of docs/methods are the boxes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
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
from turnwise.methods.method import Method

ROOT = Path(__file__).resolve().parents[2]
SOURCE, CONF, PAGES = ROOT / "src" / "turnwise", ROOT / "conf", ROOT / "docs" / "methods"
NAMES = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
CLASSES = {
    part.name: part
    for name in ("sft", "grpo", "pivotrl", "awpo", "trace", "selective")
    for part in vars(importlib.import_module(f"turnwise.methods.{name}")).values()
    if isinstance(part, type) and issubclass(part, Method) and part is not Method
}
GROUPS = ("states", "allocator", "gate", "reward", "advantage", "loss", "judge", "predictor")
ABSENT = {"gate": "never"}  # what stands in a group that a method does not use; ``none`` in the others
BUT = re.compile(r"^The algorithm is that of (\w+), but for these steps:$", re.MULTILINE)
STEP = re.compile(r"^(\d+)\. (.+(?:\n {4,}[^\[\s].*)*)\n +\[([^]]+)\] (.+(?:\n {4,}.+)*)", re.MULTILINE)
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


def box(name: str) -> str:
    """Where the class has no box of its own, the box is that of its file."""
    of_class = inspect.getdoc(CLASSES[name]) or ""
    of_file = inspect.getdoc(inspect.getmodule(CLASSES[name]))
    return of_class if STEP.search(of_class) else of_file or ""


def steps(text: str) -> dict[int, Step]:
    """The steps of a box, those of the method that it extends among them."""
    extended = BUT.search(text)
    found = steps(box(extended[1])) if extended else {}
    own = {
        int(number): Step(" ".join(does.split()), tuple(files.split(", ")), tuple(re.split(r",\s+", settings)))
        for number, does, files, settings in STEP.findall(text)
    }
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


@pytest.mark.parametrize("name", NAMES)
def test_a_box_is_what_its_method_composes_to(name: str) -> None:
    assert wrong(steps(box(name)), composed(f"method={name}")) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_steps_of_each_box_as_a_table(name: str) -> None:
    text = box(name)
    found, numbered = steps(text), [int(number) for number, *_ in STEP.findall(text)]
    wanted = "\n".join([HEAD, *(row(number, found[number]) for number in numbered)])
    assert any(wanted in path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")), wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_symbols_of_a_method_are_keys_of_its_composition(name: str) -> None:
    method = CLASSES[name]()
    for symbol in (each for each in fields(method) if each.init):
        assert differs(symbol.metadata["key"], json.dumps(symbol.default), composed(f"method={name}")) == []
    assert method.overrides == [f"method={name}"]
    size = "pool" if name == "trace" else "batch"
    for number in (3, getattr(method, size)):  # also a number that is the default is a word, if somebody gave it
        assert CLASSES[name](**{size: number}).overrides == [f"method={name}", f"rollout.states={number}"]
    assert CLASSES[name](3).overrides in ([f"method={name}", "rollout.states=3"], [f"method={name}", "states.k=3"])
