"""Every parser of outside text, with texts that it takes and the one way in which it may refuse others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from outside_texts import (
    CALLS,
    CHAT,
    COMPLETION,
    EPISODE,
    MESSAGES,
    ONE_CALL,
    OURS,
    PAGES,
    PLAN,
    PROBLEM,
    QUESTION,
    RECORDED,
    REQUEST,
    RESULT,
    SHAREGPT,
    SWEEP,
    TABLE,
    TOOLS,
    TRAJECTORY,
)

from turnwise.data.foreign.convert import Importer
from turnwise.data.toolcalls.formats import PARSERS
from turnwise.data.toolcalls.parsing import ToolCallError
from turnwise.data.trajectories import read_trajectories
from turnwise.endpoints import Fault, retry_after
from turnwise.engines.vllm_client import sample_of
from turnwise.envs.apibank.public import FILES, PublicTasks, read_request
from turnwise.envs.browse import BrowseEnv
from turnwise.envs.calls import calls_of
from turnwise.envs.household import HouseholdEnv
from turnwise.envs.math.problem_files import read_problems
from turnwise.envs.search import SearchEnv
from turnwise.envs.search.question_files import read_pages, read_questions
from turnwise.envs.search.retrievers import pages_of
from turnwise.errors import InputError
from turnwise.experiments.sweep_file import read_sweep
from turnwise.judges.chat import ChatClient
from turnwise.judges.prompt import AnswerError, read_score
from turnwise.reports.gates.recorded_groups import read_recorded
from turnwise.reports.gates.released import FEATURES, read_features
from turnwise.reports.read_run import read_run
from turnwise.runs.json_lines import each_line
from turnwise.runs.result_file import read_result
from turnwise.training.checkpoint import damage
from turnwise.training.evaluate import read_evaluation


@dataclass(frozen=True, slots=True)
class Target:
    """``parse(data, folder)`` may raise ``refuses`` and nothing else; ``folder`` is for those that read files."""

    name: str
    parse: Callable[[bytes, Path], object]
    refuses: type[Exception] | tuple[type[Exception], ...]
    seeds: Sequence[str]


def _text(parse: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    def parsed(data: bytes, folder: Path) -> object:
        try:
            text = data.decode("utf-8", "surrogatepass")  # halves of surrogate pairs come out of JSON and tokenizers
        except UnicodeDecodeError:
            text = data.decode("utf-8", "replace")
        return parse(text)

    return parsed


def _records(path: Path) -> list[dict[str, Any]]:
    return list(each_line(path))


def _file(name: str, parse: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def parsed(data: bytes, folder: Path) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return parse(path)

    return parsed


@cache
def _worlds() -> dict[str, Any]:
    return {
        "household": HouseholdEnv(),
        "search": SearchEnv("tiny", countries=2),
        "browse": BrowseEnv("tiny", countries=2),
    }


def _step(world: str) -> Callable[[str], object]:
    """What a policy writes as the first action of an episode."""

    def step(text: str) -> object:
        env = _worlds()[world]
        return env.reset(env.tasks("train", 1)[0]).step(text)

    return step


def _run_folder(folder: Path) -> object:
    (folder / "rollouts").mkdir(exist_ok=True)
    (folder / "evaluation").mkdir(exist_ok=True)
    data = (folder / "metrics.jsonl").read_bytes()
    for name in (
        "rollouts/train.jsonl",
        "evaluation/base.jsonl",
        "evaluation/after.jsonl",
        "result.json",
        "config.yaml",
    ):
        (folder / name).write_bytes(data)
    return read_run(folder)


def targets() -> list[Target]:
    """All of them."""
    short, hermes = calls_of("short", TOOLS), calls_of("hermes", TOOLS)
    found = [
        Target(f"calls/{name}", _text(lambda text, p=parser: p(text, TOOLS)), ToolCallError, list(CALLS.values()))
        for name, parser in PARSERS.items()
    ]
    found += [
        Target("calls/short world", _text(short.read), ToolCallError, ["find Paris 3", *CALLS.values()]),
        Target("calls/hermes world", _text(hermes.read), ToolCallError, list(CALLS.values())),
        Target("apibank request", _text(read_request), ValueError, ["API-Request: [Find(city='Paris', days=3)]"]),
        Target("household action", _text(_step("household")), (), ["go to desk 1", "take mug 1 from desk 1"]),
        Target("search action", _text(_step("search")), (), ["search Comet", "answer 7", CALLS["hermes"]]),
        Target("browse action", _text(_step("browse")), (), ["open 1", "find ice", "answer 7"]),
        Target("judge answer", _text(read_score), AnswerError, ['<think>so</think>```json\n{"score": 0.5}\n```']),
        Target("judge reply", lambda d, f: ChatClient("http://127.0.0.1:1/v1")._read(d), Fault, [CHAT]),
        Target("vllm reply", lambda d, f: sample_of(d, REQUEST, 1000), Fault, [COMPLETION]),
        Target("retriever reply", lambda d, f: pages_of(d, 3), ValueError, [PAGES]),
        Target("retry-after header", _text(retry_after), (), ["2.5", "Wed, 21 Oct 2026 07:28:00 GMT"]),
        Target("trajectories", _file("t.jsonl", read_trajectories), InputError, [TRAJECTORY, OURS]),
        Target("trajectories, array", _file("t.json", read_trajectories), InputError, [f"[{TRAJECTORY}, {OURS}]"]),
        Target(
            "importer",
            _file("i.jsonl", lambda p: list(Importer().trajectories([p]))),
            InputError,
            [SHAREGPT, TRAJECTORY],
        ),
        Target("recorded rollouts", _file("r.jsonl", lambda p: read_recorded([p], [1])), InputError, [RECORDED]),
        Target("released buffer", _file(FEATURES, lambda p: read_features(p.parent)), InputError, [TABLE]),
        Target("questions", _file("q.jsonl", lambda p: read_questions(p, "env.files")), InputError, [QUESTION]),
        Target(
            "pages",
            _file("p.jsonl", lambda p: read_pages(p, "env.corpus")),
            InputError,
            ['{"title": "a", "text": "b"}'],
        ),
        Target("problems", _file("p.jsonl", lambda p: read_problems(p, "env.files")), InputError, [PROBLEM]),
        *(
            Target(
                f"apibank level {level}",
                _file(FILES[level], lambda p, level=level: PublicTasks(p.parent, [level])),
                InputError,
                [seed],
            )
            for level, seed in ((1, ONE_CALL), (3, PLAN))
        ),
        Target("result", _file("result.json", read_result), InputError, [RESULT]),
        Target("sweep", _file("s.yaml", read_sweep), InputError, [SWEEP]),
        Target(
            "run folder",
            _file("metrics.jsonl", lambda p: _run_folder(p.parent)),
            (),
            [RECORDED, RESULT, json.dumps(EPISODE)],
        ),
        Target(
            "metrics",
            _file("m.jsonl", _records),
            (),
            ['{"iteration": 0, "phase": "train"}\n{"iteration": 1}'],
        ),
        Target("evaluation", _file("e.jsonl", read_evaluation), (), [json.dumps({**EPISODE, "messages": MESSAGES})]),
        Target("checkpoint", _file("last.ckpt", damage), (), ["PK\x05\x06" + "0" * 90]),
    ]
    return found
