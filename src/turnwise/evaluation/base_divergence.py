"""Measures how far a policy has moved from its base model on general questions, on which it is never trained.

The base model, which is ``policy.model`` without any adapter, answers 24 questions by sampling at temperature 1. The
divergence of a policy is KL(base, policy) in nats a token, over the tokens of these answers; each term is summed over
the whole vocabulary. It needs no skill of the model, and shows forgetting long before a benchmark does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.cache import give_back
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.files import atomic_write
from turnwise.models.attention import backbone
from turnwise.models.logprobs import Head, plan_of
from turnwise.models.policy import load_policy, weight_files

ANSWER = 32  # most tokens of an answer
TOGETHER = 4  # sequences in one forward pass
POSITIONS = 128  # positions whose whole distributions are in memory at once
QUESTIONS = tuple(Path(__file__).with_name("questions.txt").read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True, slots=True)
class Divergence:
    """The divergence of a policy from its base model over the base model's answer to one question."""

    question: str
    tokens: int
    kl: float  # nats, summed over the tokens
    same: int  # number of tokens at which both find the same token most likely


@dataclass(frozen=True, slots=True)
class General:
    """The base model's answers, in rows of question and answer. A prediction is a token of an answer.

    Attributes:
        ids_BS, length_B: token ids, padded at the end, and the lengths of the rows.
        begin_B: where the answers begin.
        hidden_UC: last hidden states of the base model at the U positions that predict the answers, row after row.
    """

    ids_BS: Tensor
    length_B: Tensor
    begin_B: Tensor
    hidden_UC: Tensor

    def divergence(self, model: Any) -> list[Divergence]:
        """Returns the divergence of ``model`` for each question. The model must have the output head of the base model,
        which LoRA does not change.
        """
        head, divergences = Head(model), []
        device = next(model.parameters()).device
        counts = (self.length_B - self.begin_B).tolist()
        base_of = self.hidden_UC.split(counts)
        with torch.no_grad():
            hidden_of = last_hidden(model, self).split(counts)
            for question, base_TC, hidden_TC in zip(QUESTIONS, base_of, hidden_of, strict=False):
                kl, same = 0.0, 0
                for before, now in zip(base_TC.split(POSITIONS), hidden_TC.split(POSITIONS), strict=True):
                    base_TV, now_TV = (
                        head(h.to(device, head.weight.dtype)).float().log_softmax(-1) for h in (before, now)
                    )
                    kl += float((base_TV.exp() * (base_TV - now_TV)).sum())
                    same += int((base_TV.argmax(-1) == now_TV.argmax(-1)).sum())
                divergences.append(Divergence(question, len(base_TC), kl, same))
        return divergences


def general_answers(source: str, dtype: str, cache: Path, count: int) -> General:
    """Returns the answers of the model ``source`` to the first ``count`` questions. They are sampled once and kept in
    ``cache``.
    """
    versions = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in weight_files(source)]
    key = hashlib.sha256(repr((source, dtype, QUESTIONS[:count], ANSWER, versions)).encode()).hexdigest()[:16]
    path = cache / f"general-{key}.safetensors"
    if path.is_file():
        return General(**load_file(path))
    model, tokenizer = load_policy(source, dtype)
    chat = ChatTokens(tokenizer)
    prompts = [chat.prompt([{"role": "user", "content": question}]) for question in QUESTIONS[:count]]
    rows = [[*prompt, *answer] for prompt, answer in zip(prompts, _sampled(model, prompts, chat.stop_ids), strict=True)]
    longest = max(map(len, rows))
    general = General(
        ids_BS=torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
        length_B=torch.tensor([len(row) for row in rows]),
        begin_B=torch.tensor([len(prompt) for prompt in prompts]),
        hidden_UC=torch.empty(0),
    )
    with torch.no_grad():
        hidden_UC = last_hidden(model, general)
    general = General(general.ids_BS, general.length_B, general.begin_B, hidden_UC)
    del model
    give_back()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        save_file({name: getattr(general, name).contiguous() for name in General.__slots__}, part)
    return general


def last_hidden(model: Any, general: General) -> Tensor:
    """Hidden states (U, C) on the CPU at the positions that predict the answers, row after row."""
    device, hidden = next(model.parameters()).device, []
    for first in range(0, len(general.ids_BS), TOGETHER):
        rows = slice(first, first + TOGETHER)
        length_B = general.length_B[rows]
        S = int(length_B.max())
        place_BS = torch.arange(S).expand(len(length_B), S)
        end_BS = torch.where(place_BS < length_B[:, None], length_B[:, None], 0).to(device)
        out = backbone(model)(
            input_ids=general.ids_BS[rows, :S].to(device),
            position_ids=place_BS.to(device),
            use_cache=False,
            plan=plan_of(end_BS),
        )
        predicts = (place_BS >= general.begin_B[rows, None] - 1) & (place_BS < length_B[:, None] - 1)
        hidden.append(out.last_hidden_state.cpu()[predicts])
    return torch.cat(hidden)


def counted(rows: Iterable[Divergence], value: str) -> dict[str, tuple[float, float]]:
    """Question -> sum of ``value`` (``kl`` or ``same``) over its tokens, and their number."""
    return {row.question: (float(getattr(row, value)), float(row.tokens)) for row in rows}


def _sampled(model: Any, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int]) -> list[list[int]]:
    engine = TreeEngine(stop_ids)
    engine.load_weights(model, 0)
    nodes = [engine.open(list(prompt)) for prompt in prompts]
    samples = engine.sample(nodes, Sampling(temperature=1.0, max_tokens=ANSWER), list(range(len(nodes))))
    engine.close(nodes)
    engine.shutdown()
    return [list(sample.ids) for sample in samples]
