"""Small tokenizers with the templates of real model families, built on the spot."""

from __future__ import annotations

from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "You are in the middle of a room. Your task is to put a clean mug in the cabinet.",
    "go to desk 1\ntake pencil 1 from desk 1\nopen drawer 2\nuser assistant system tool\n",
    "On the countertop 1, you see a bread 1, a knife 2, and a tomato 3. Nothing happens.",
]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Bare of tools but otherwise what Llama 3 does: a header, a blank line, trimmed content, no newline after a turn.
LLAMA3 = (
    "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)

# As Mistral and Llama 2: spaces around the action belong to the assistant's turn, which eos closes.
INST = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)

# No special token closes a turn.
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

# What Qwen3's template does to thinking: kept in the last turn (and added empty if there was none), dropped before.
QWEN3 = """{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set content = m.content %}{%- set thought = '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
{{- content }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
{{- '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "inst": INST, "plain": PLAIN, "qwen3": QWEN3}
_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|head|>",
    "<|/head|>",
    "<|eot|>",
    "<s>",
    "</s>",
]


@cache
def byte_level(template: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as Qwen and Llama 3 have it."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    eos = {"inst": "</s>", "plain": "<|endoftext|>"}.get(template, "<|im_end|>")
    return _wrap(core, template, eos)


@cache
def metaspace(template: str) -> PreTrainedTokenizerFast:
    """BPE with a mark for spaces, put before a text's first word too, as Llama 2 has it."""
    core = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.decoder = decoders.Metaspace(prepend_scheme="first")
    alphabet = sorted({chr(c) for c in range(32, 127)} | {"\n"})
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", *_SPECIAL], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    return _wrap(core, template, "</s>")


def _wrap(core: Tokenizer, template: str, eos: str) -> PreTrainedTokenizerFast:
    extra = [AddedToken(token, special=True) for token in _SPECIAL if token != eos]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, extra_special_tokens=extra)
    tokenizer.chat_template = TEMPLATES[template]
    return tokenizer


@pytest.fixture(params=[byte_level, metaspace], ids=["byte_level", "metaspace"])
def build(request):
    """Builds a tokenizer, of one kind and then the other, with a named template."""
    return request.param


@pytest.fixture
def build_byte_level():
    return byte_level
