"""Defines a peer that uses TRL's GRPOTrainer: its multi-turn loop over environments, and its update.

TRL steps an environment through tool calls. The tiny policy writes plain commands, so the tokenizer that TRL gets
parses every action as one call of the tool ``act``, and its chat template renders a tool's answer as the user message
that the policy knows. These are exactly the tokens that Turnwise's rollouts read. A rollout whose episode is over
leaves TRL's loop at once, because the episode's last answer is longer than the completion budget, which ends the
rollout. Otherwise the rollout would continue until the budget is used up.
"""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from turnwise.engines.engine import Sampling
from turnwise.shipped import tiny_path
from work import Work

logging.getLogger("datasets").setLevel(logging.ERROR)
disable_progress_bar()

# A call is only shown if the assistant message has no text. This happens only when TRL tests the template, never in a
# rollout.
TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' + (message.content or '') -}}
{%- if not message.content -%}
{%- for call in message.tool_calls or [] -%}{{- call.function.name + ' ' + call.function.arguments | tojson -}}{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""


class ActionTokenizer(PreTrainedTokenizerFast):
    """The shipped tokenizer, changed so that every response is one call of ``act``."""

    def parse_response(self, response: Any, *_: Any, **__: Any) -> dict[str, Any]:
        text = self.decode(response, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "act", "arguments": {"command": text}}}
        return {"role": "assistant", "content": text, "tool_calls": [call]}


def action_tokenizer() -> Any:
    """Returns a tokenizer with which TRL can play households."""
    tokenizer = ActionTokenizer.from_pretrained(tiny_path(), padding_side="left")
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = {}  # TRL checks that the attribute exists; parse_response does not need it
    return tokenizer


def environment_of(work: Work, pad_token: str) -> type:
    """Returns the household as TRL's environment class."""
    over = pad_token * (work.max_length + 1)

    class World:
        def reset(self, number: int, **_: Any) -> None:
            self._session = work.environment.reset(work.states[number].task)

        def act(self, command: str) -> str:
            """Act in the room.

            Args:
                command: what to do.
            """
            step = self._session.step(command)
            return over if step.done else step.observation

        def get_reward(self) -> float:
            return float(self._session.won)

    return World


def trainer_config(sampling: Sampling, samples: int, group: int, **more: Any) -> GRPOConfig:
    """Returns TRL's settings for the same sampling. Gradient checkpointing is off, because it costs time."""
    chosen: dict[str, Any] = {
        "output_dir": tempfile.gettempdir(),
        "use_cpu": not torch.cuda.is_available(),
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "gradient_checkpointing": False,
        "per_device_train_batch_size": samples,
        "num_generations": group,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or None,
        "generation_kwargs": {"max_new_tokens": sampling.max_tokens},
        "beta": 0.0,
        "max_steps": 1,
    }
    return GRPOConfig(**(chosen | more))


class Rollouts:
    """TRL's collection of one batch: TRL tokenises, runs its tool loop, pads and computes rewards."""

    def __init__(self, model: Any, work: Work) -> None:
        tokenizer = action_tokenizer()
        rows = [
            {"prompt": work.environment.reset(state.task).opening(), "number": number}
            for number, state in enumerate(work.states)
            for _ in range(work.group)
        ]
        self.rows, self.group = rows, work.group
        self.trainer = GRPOTrainer(
            model=model,
            args=trainer_config(work.sampling, len(rows), work.group, max_completion_length=work.max_length),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=environment_of(work, tokenizer.pad_token),
        )
        self.trainer.model.train()

    def play(self, groups: int | None = None) -> int:
        """Plays the first ``groups`` tasks (default: all) and returns the number of sampled tokens."""
        out = self.collect(groups)
        return int((out["tool_mask"] * out["completion_mask"]).sum())

    def collect(self, groups: int | None = None) -> dict[str, torch.Tensor]:
        """Returns TRL's padded tensors of one collection."""
        rows = self.rows if groups is None else self.rows[: groups * self.group]
        out: dict[str, torch.Tensor] = self.trainer._generate_and_score_completions([dict(row) for row in rows])
        return out


class Loss:
    """TRL's loss on given samples, without generation."""

    def __init__(self, model: Any, samples: int) -> None:
        rows = [{"prompt": str(i)} for i in range(samples)]
        self.trainer = GRPOTrainer(
            model=model,
            args=trainer_config(Sampling(), samples, samples, loss_type="grpo", epsilon=0.2),
            train_dataset=Dataset.from_list(rows),
            processing_class=action_tokenizer(),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
        )
        self.trainer.current_gradient_accumulation_steps = 1

    def __call__(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.trainer._compute_loss(self.trainer.model, inputs)
        return loss
