"""What a checkpoint can do: household success and the skills' scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turnwise.envs.base import Environment
from turnwise.evaluation.skills import SKILLS, Split, items
from turnwise.tiny.decode import Decoder
from turnwise.tiny.tokenizer import TURN_END
from turnwise.types import Task


def play(
    model: Any,
    tokenizer: Any,
    env: Environment,
    tasks: Sequence[Task],
    temperature: float,
    seed: int = 0,
    slots: int = 2048,
) -> tuple[list[bool], dict[str, float]]:
    """Won or not for each task, and rates: inadmissible actions, exact repetitions of an earlier action, turns an episode.

    An episode that outgrows ``slots`` tokens ends as lost.
    """
    sessions = [env.reset(task) for task in tasks]
    decoder = Decoder(model, len(tasks), slots)
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    newline = tokenizer.encode("\n", add_special_tokens=False)
    temperatures = torch.full((len(tasks),), temperature)
    rng = torch.Generator().manual_seed(seed)
    texts = [tokenizer.apply_chat_template(s.opening(), tokenize=False, add_generation_prompt=True) for s in sessions]
    chunks = [tokenizer.encode(t, add_special_tokens=False) for t in texts]
    active = [not s.done for s in sessions]
    done_before: list[set[str]] = [set() for _ in sessions]
    turns = refused = repeated = 0
    while any(active):
        logits = decoder.feed(chunks)
        actions = decoder.sample(logits, active, temperatures, end, 24, rng)
        chunks = [[] for _ in sessions]
        for row, session in enumerate(sessions):
            if not active[row]:
                continue
            action = tokenizer.decode([i for i in actions[row] if i != end])
            step = session.step(action)
            turns += 1
            refused += step.observation == "Nothing happens."
            repeated += action in done_before[row]
            done_before[row].add(action)
            reply = [{"role": "user", "content": step.observation}]
            text = tokenizer.apply_chat_template(reply, tokenize=False, add_generation_prompt=True)
            close = [] if actions[row][-1] == end else [end]
            chunks[row] = close + newline + tokenizer.encode(text, add_special_tokens=False)
            room = slots - int(decoder.lengths[row]) - len(chunks[row]) - 32
            active[row] = not step.done and room > 0
            if not active[row]:
                chunks[row] = []
    rates = {
        "inadmissible": refused / max(turns, 1),
        "repeated": repeated / max(turns, 1),
        "turns": turns / max(len(tasks), 1),
    }
    return [s.won for s in sessions], rates


def skill_scores(
    model: Any, tokenizer: Any, count: int, temperature: float = 0.0, split: Split = "test", seed: int = 0
) -> dict[str, float]:
    """Mean score of each skill over ``count`` items."""
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    rng = torch.Generator().manual_seed(seed)
    scores = {}
    for name, skill in SKILLS.items():
        asked = items(name, split, count, seed)
        texts = [tokenizer.apply_chat_template(i.messages, tokenize=False, add_generation_prompt=True) for i in asked]
        decoder = Decoder(model, count, 160)
        logits = decoder.feed([tokenizer.encode(t, add_special_tokens=False) for t in texts])
        answers = decoder.sample(logits, [True] * count, torch.full((count,), temperature), end, 20, rng)
        graded = [
            skill.score(tokenizer.decode([i for i in ids if i != end]), item)
            for ids, item in zip(answers, asked, strict=True)
        ]
        scores[name] = sum(graded) / count
    return scores
