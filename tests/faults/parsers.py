"""Every parser of outside text, with texts that it takes and the one way in which it may refuse others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.analysis.recorded import read_recorded
from turnwise.analysis.released import FEATURES, read_features
from turnwise.data.foreign.convert import Importer
from turnwise.data.toolcalls.base import ToolCallError
from turnwise.data.toolcalls.formats import PARSERS
from turnwise.data.trajectories import read_trajectories
from turnwise.endpoints import retry_after
from turnwise.engines.vllm.connection import parsed
from turnwise.engines.vllm.faults import Fault
from turnwise.engines.vllm.holding import cards_of, first_logprob
from turnwise.engines.vllm.wire import sample_of
from turnwise.envs.apibank.released import FILES, ReleasedTasks, read_request
from turnwise.envs.browse import BrowseEnv
from turnwise.envs.calls import calls_of, tool
from turnwise.envs.household import HouseholdEnv
from turnwise.envs.math.public import read_problems
from turnwise.envs.search import SearchEnv
from turnwise.envs.search.public import read_pages, read_questions
from turnwise.envs.search.retrieval import pages_of
from turnwise.errors import InputError
from turnwise.gates.signals import SIGNALS
from turnwise.judges.client import ChatClient, ChatFault
from turnwise.judges.prompt import AnswerError, read_score
from turnwise.papers.table import read_sweep
from turnwise.reports.result import read_result
from turnwise.reports.run import read_run
from turnwise.training.checkpoint import damage
from turnwise.training.lines import each_line
from turnwise.training.outcome import read_evaluation


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


TOOLS = [tool("find", "Finds.", city=("string", "a city"), days=("integer", "how many"))]
CALLS = {
    "hermes": 'I look.\n<tool_call>\n{"name": "find", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=find>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama_json": '{"name": "find", "parameters": {"city": "Paris", "days": 3}}',
    "bfcl_python": "[find(city='Paris', days=3), find(city=\"Rome\", days=-1)]",
}
CALL = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"city": "Paris", "days": 3}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": "look", "tool_calls": [CALL]},
    {"role": "tool", "content": "7", "tool_call_id": "1"},
    {"role": "assistant", "content": "7 degrees"},
]
TRAJECTORY = json.dumps({"id": "a", "messages": MESSAGES, "tools": TOOLS})
OURS = json.dumps(
    {
        "id": "b",
        "messages": MESSAGES,
        "tools": TOOLS,
        "task": {"env": "household", "id": "1", "split": "train", "data": {}},
    }
)
SHAREGPT = json.dumps(
    {
        "conversations": [
            {"from": "human", "value": "weather?"},
            {"from": "gpt", "value": CALLS["hermes"]},
            {"from": "tool", "value": "<tool_response>\n7\n</tool_response>"},
            {"from": "gpt", "value": "7 degrees"},
        ],
        "tools": json.dumps(TOOLS),
    }
)
_TURN = {"parent": -1, "text": "go", "observation": "ok", "reward": 0.0, "done": False, "logprob": -1.0, "info": {}}
_TURNS = [_TURN, {**_TURN, "parent": 0}, _TURN, {**_TURN, "parent": 2, "text": "stop"}]
RECORDED = json.dumps(
    {
        "iteration": 0,
        "state": {"id": "s", "turn": 0, "task": "t", "type": None, "messages": MESSAGES[:2]},
        "expert": None,
        "turns": _TURNS,
        "stopped": False,
        "looks": [],
        "rewards": {"total": [0.0, 1.0]},
    }
)
COMPLETION = json.dumps(
    {
        "choices": [
            {
                "token_ids": [5, 2],
                "logprobs": {"token_logprobs": [-0.5, -0.1], "tokens": ["token_id:5", "token_id:2"]},
                "prompt_token_ids": [1, 7],
                "finish_reason": "stop",
            }
        ]
    }
)
REQUEST = {"prompt": [1, 7], "stop_token_ids": [2], "max_tokens": 4}
CHAT = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": '{"score": 0.5}'}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3},
    }
)
_SIDE = {"base": 10.0, "after": 20.0, "delta": 10.0, "delta_ci95": [1.0, 19.0], "tasks": 4}
RESULT = json.dumps(
    {"method": "grpo", "env": "household", "scale": "tiny", "seed": 0, "in_domain": {**_SIDE, "greedy": _SIDE}}
)
EPISODE = {"split": "seen", "task": "1", "mode": "greedy", "attempt": 0, "success": True, "turns": 1, "subset": "a"}
SWEEP = """
paper: P
entry: Table 1
title: Table 1 of P
seeds: [0, 1]
columns: {score: in_domain.after}
rows:
  base: {label: Base, overrides: method=sft trainer.max_epochs=0, numbers: {score: 10.0}}
  ours: {overrides: method=pivotrl, at: {tiny: rollout.states=32}, numbers: {score: 20.0}}
directions:
  in_domain.after: [ours > base]
"""
_HEAD = ["K", "task_id", "task_type", "label", "reward_var", *SIGNALS]
TABLE = (
    ",".join(_HEAD)
    + "\n"
    + "".join(f"{k},t{i},pick,mixed,0.2{',0.5' * len(SIGNALS)}\n" for i in (0, 1) for k in (1, 3))
)
QUESTION = json.dumps(
    {
        "_id": "q",
        "question": "Who?",
        "answer": "A",
        "supporting_facts": [["Comet", 0]],
        "context": [["Comet", ["A comet is ice.", "It is cold."]]],
        "type": "bridge",
    }
)
PROBLEM = json.dumps(
    {"problem": "1 + 1?", "final_answer": '["2"]', "solution": "\\boxed{2}", "source": "olympiadbench"}
)
CARDS = json.dumps({"data": [{"id": "policy", "root": "/weights", "max_model_len": 512}]})
PAGES = json.dumps({"result": [[{"document": {"contents": "Comet\nA comet is ice."}, "score": 1.0}]]})
_API = {"name": "Wake", "description": "Wakes.", "input_parameters": {"time": {"type": "str", "description": "when"}}}
ONE_CALL = json.dumps(
    [
        {
            "file": "a",
            "instruction": "API descriptions:\n" + json.dumps(_API),
            "input": "User: wake me at 7\nGenerate API Request:\n",
            "expected_output": "API-Request: [Wake(time='7')]",
        }
    ]
)
_FOUND = {
    "api_name": "ToolSearcher",
    "input": {"keywords": "Wake"},
    "output": {"api_name": "ToolSearcher", "output": _API},
}
PLAN = json.dumps(
    [
        {
            "requirement": "wake me",
            "apis": [_FOUND, {"api_name": "Wake", "input": {"time": "7"}, "output": {"output": "ok"}}],
        }
    ]
)


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
        Target("judge reply", lambda d, f: ChatClient("http://127.0.0.1:1/v1")._read(d), ChatFault, [CHAT]),
        Target("vllm reply", lambda d, f: sample_of(d, REQUEST, 1000), Fault, [COMPLETION]),
        Target("vllm models", lambda d, f: cards_of(parsed(d, "/v1/models")), Fault, [CARDS]),
        Target("vllm probe", lambda d, f: first_logprob(d), Fault, [COMPLETION]),
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
                _file(FILES[level], lambda p, level=level: ReleasedTasks(p.parent, [level])),
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
