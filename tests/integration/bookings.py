"""Dialogues of a booking desk with tools, and random models of four families, for tests of a person's own data and model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from turnwise.shipped import ASSETS


def _tool(name: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": name.replace("_", " "), "parameters": schema}}


TOOLS = [
    _tool("find_table", place="string", people="integer"),
    _tool("add_event", title="string", hour="integer"),
    _tool("cancel", booking="string"),
]


def _call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def dialogues(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Chat records with tools: single and parallel calls, calls with text beside them, text replies, most with a system turn."""
    draw = random.Random(seed)
    records = []
    for number in range(count):
        place, people, hour = draw.choice(["Roma", "Lido", "Kiku"]), draw.randint(2, 6), draw.randint(12, 21)
        messages: list[dict[str, Any]] = []
        if number % 4:
            messages.append({"role": "system", "content": "You book tables and keep a calendar."})
        kind = number % 3
        if kind == 0:
            messages += [
                {"role": "user", "content": f"A table at {place} for {people}."},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [_call("find_table", 1, place=place, people=people)],
                },
                {"role": "tool", "tool_call_id": "call00001", "name": "find_table", "content": f"free at {hour}"},
                {"role": "assistant", "content": f"There is a table at {hour}."},
                {"role": "user", "content": "Take it."},
                {"role": "assistant", "content": "It is booked."},
            ]
        elif kind == 1:
            both = [_call("find_table", 1, place=place, people=people), _call("add_event", 2, title=place, hour=hour)]
            messages += [
                {"role": "user", "content": f"{place} for {people}, and note it at {hour}."},
                {"role": "assistant", "content": "", "tool_calls": both},
                {"role": "tool", "tool_call_id": "call00001", "name": "find_table", "content": "free"},
                {"role": "tool", "tool_call_id": "call00002", "name": "add_event", "content": "noted"},
                {"role": "assistant", "content": "Both are done."},
            ]
        else:
            messages += [
                {"role": "user", "content": f"Cancel {place}{people}."},
                {
                    "role": "assistant",
                    "content": "One moment.",
                    "tool_calls": [_call("cancel", 1, booking=f"{place}{people}")],
                },
                {"role": "tool", "tool_call_id": "call00001", "name": "cancel", "content": "done"},
                {"role": "assistant", "content": "It is cancelled."},
            ]
        records.append({"id": f"booking-{number}", "messages": messages, "tools": TOOLS})
    return records


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# Templates with the structure of each family's: what they show, move, drop and refuse. The words are not theirs.

QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- messages[0].content if messages[0].role == 'system' else 'You help.' }}
    {{- '\\n<tools>' }}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{- '\\n</tools><|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else 'You help.') + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first)
        or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}{% if message.content %}{{ '\\n' + message.content }}{% endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Environment: ipython\\n' }}{% endif %}
{{- system + '<|eot_id|>' }}
{%- if tools %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nAnswer with a call of one of:\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}
    {{- messages[0].content + '<|eot_id|>' }}{% set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('a single call at once') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content | trim) + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

MISTRAL = """
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {%- if tools and message == users[-1] %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
        {%- if loop.last and system is defined %}{{- '[INST] ' + system + '\\n\\n' + message.content + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message.content + '[/INST]' }}{% endif %}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}{{ raise_exception('ids of 9 characters') }}{% endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
            {{- ', "id": "' + call.id + '"}' }}{{- ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) + '}[/TOOL_RESULTS]' }}
    {%- else %}{{ raise_exception('roles') }}{% endif %}
{%- endfor %}
"""

GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\\n' + (message.content | trim) + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}
"""

FAMILIES: dict[str, tuple[Any, Any, str, list[str]]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, QWEN, ["<|im_start|>", "<|im_end|>"]),
    "llama": (
        LlamaConfig,
        LlamaForCausalLM,
        LLAMA,
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
    ),
    "mistral": (
        MistralConfig,
        MistralForCausalLM,
        MISTRAL,
        [
            "<s>",
            "</s>",
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ],
    ),
    "gemma": (GemmaConfig, GemmaForCausalLM, GEMMA, ["<bos>", "<end_of_turn>", "<start_of_turn>"]),
}


def tokenizer(family: str) -> PreTrainedTokenizerFast:
    """The shipped byte-level vocabulary with the special tokens and the template of a family; the second token ends a turn."""
    _, _, template, tokens = FAMILIES[family]
    shipped: Any = AutoTokenizer.from_pretrained(ASSETS)
    shipped.add_special_tokens({"bos_token": tokens[0], "eos_token": tokens[1], "additional_special_tokens": tokens})
    shipped.chat_template = template
    return shipped


def model_folder(family: str, folder: Path) -> Path:
    """A folder in Hugging Face format: random weights of the family's architecture under its template."""
    config_class, model_class, _, _ = FAMILIES[family]
    words = tokenizer(family)
    torch.manual_seed(0)
    config = config_class(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        **({"sliding_window": None} if family == "mistral" else {}),
    )
    model_class(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
