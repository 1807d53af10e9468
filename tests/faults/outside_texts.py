"""Well-formed texts for each parser, from which the fuzzer makes broken ones."""

from __future__ import annotations

import json

from turnwise.algo.gates.gate import SIGNALS
from turnwise.data.tool_schema import make_tool

TOOLS = [make_tool("find", "Finds.", city=("string", "a city"), days=("integer", "how many"))]
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
        "model": "m",
        "choices": [
            {
                "token_ids": [5, 2],
                "logprobs": {"token_logprobs": [-0.5, -0.1], "tokens": ["token_id:5", "token_id:2"]},
                "prompt_token_ids": [1, 7],
                "finish_reason": "stop",
            }
        ],
    }
)
REQUEST = {"model": "m", "prompt": [1, 7], "stop_token_ids": [2], "max_tokens": 4}
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
