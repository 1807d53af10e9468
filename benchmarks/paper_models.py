"""Creates models of the papers' families with random weights and with templates that resemble those of Qwen.

The chat templates render conversations as Qwen's do; their instructions are shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from turnwise.shipped import ASSETS

# Qwen2.5 and Qwen3 list tools in the system turn, write calls between tags, and put answers into a user turn.
HEAD = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' }}
    {{- '# Tools\\n\\nSignatures are within <tools></tools>:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
    {{- '\\n</tools>\\n\\nWrite calls as\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""
CALLS = """
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function %}
            {{- '\\n' if content or not loop.first else '' }}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
"""
TOOL = """
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
"""
PLAIN = (
    HEAD
    + """
{%- for message in messages %}
    {%- set content = message.content or '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + content }}"""
    + CALLS
    + TOOL
    + """
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
)
# Qwen3 shows only the reasoning after the last request. For a model that always thinks, the prompt has the opening tag.
REASONING = (
    HEAD
    + """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content or '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}"""
    + CALLS
    + TOOL
    + """
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}ALWAYS{% endif %}
"""
)
HYBRID, THINKING = REASONING.replace("ALWAYS", ""), REASONING.replace("ALWAYS", "{{- '<think>\\n' }}")

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 65536,
}
WIDE = {"head_dim": 24}
MIXED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
FAMILIES: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], str]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}, PLAIN),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, WIDE, HYBRID),
    "qwen3_instruct": (Qwen3Config, Qwen3ForCausalLM, WIDE, PLAIN),
    "qwen3_moe_thinking": (Qwen3MoeConfig, Qwen3MoeForCausalLM, WIDE | MIXED, THINKING),
}


LARGE: dict[str, Any] = {  # Qwen3-0.6B's sizes
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "max_position_embeddings": 65536,
    "vocab_size": 151936,
}
LARGE_MORE = {
    "qwen3": {"head_dim": 128, "tie_word_embeddings": True},
    "qwen3_instruct": {"head_dim": 128, "tie_word_embeddings": True},
    "qwen3_moe_thinking": {"head_dim": 128, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768},
}


def model_folder(family: str, folder: Path, large: bool = False, device: str = "cpu") -> Path:
    """Returns a folder with a model of a family in Hugging Face format, with random weights.

    Args:
        large: True: the sizes and vocabulary of Qwen3-0.6B, in bfloat16. False: tiny sizes, the shipped vocabulary.
        device: device on which the weights are drawn.
    """
    config, model, more, template = FAMILIES[family]
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    tokenizer.chat_template = template
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), **SMALL, **more}
    if large:
        sizes = {**LARGE, **more, **LARGE_MORE.get(family, {})}
    made = config(eos_token_id=tokenizer.eos_token_id, **sizes)
    with torch.device(device):
        weights = model(made)
    (weights.to(torch.bfloat16) if large else weights).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
