"""What a checkpoint can do: held-out episodes and the skills' scores, by the code that measures a run, and how well it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from recipes.tiny.corpus import encode
from scipy.stats import mannwhitneyu

from turnwise.data.chat import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree import TreeEngine
from turnwise.envs.environment import Environment
from turnwise.evaluation.suites import Episode, answer_skills, openings, play_tasks, repeat_rate
from turnwise.rollouts.play import Player
from turnwise.types import Message

Figures = dict[str, float]


def measure(
    model: Any,
    tokenizer: Any,
    worlds: Mapping[str, Environment],
    tasks: int,
    items: int,
    max_tokens: int,
    modes: Sequence[str] = ("greedy", "sampled"),
) -> dict[str, Any]:
    """``worlds``: world -> decoding mode -> figures (:func:`figures`); ``skills``: the mean score of each (a share).

    The tasks and items are the first that a run evaluates on, half of the tasks of each held-out split; each is played once
    a mode under a run's draws.

    Args:
        model: whose weights are measured; it is left as it is.
        worlds: by name.
        tasks: of each world, at least two.
        items: of each skill.
        max_tokens: of a reply.
    """
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids, copy=False)
    engine.load_weights(deepcopy(model).cpu().eval(), version=0)
    half = tasks // 2
    found: dict[str, dict[str, Figures]] = {}
    for name, env in worlds.items():
        chosen = [*env.tasks("seen", tasks - half), *env.tasks("unseen", half)]
        opening = openings(env, chat)
        for mode in modes:
            sampling = Sampling(temperature=float(mode == "sampled"), max_tokens=max_tokens)
            player = Player(engine, env, chat, sampling)
            episodes = play_tasks(player, opening, chosen, 1, mode, "eval")
            found.setdefault(name, {})[mode] = figures(episodes)
    scores: dict[str, list[float]] = {}
    for answer in answer_skills(engine, chat, items, seed=0) if items else ():
        scores.setdefault(answer.suite, []).append(answer.score)
    return {"worlds": found, "skills": {suite: float(np.mean(values)) for suite, values in scores.items()}}


@torch.no_grad()
def reads(model: Any, tokenizer: Any, env: Environment, tasks: int) -> float:
    """How far P(take) tells lists that hold the task's object from lists that do not: 0.5 is blind, 1 is perfect.

    The area under the ROC curve (Mann-Whitney), over the lists that the good expert sees in seen rooms before it takes
    anything; what the expert does next is the truth.

    Args:
        tasks: whose lists are shown, held out of training.
    """
    take = tokenizer.encode("take", add_special_tokens=False)[0]
    head = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    found: dict[bool, list[float]] = {True: [], False: []}
    for i, task in enumerate(env.tasks("seen", tasks)):
        messages = env.demonstrate(task, quality="good", seed=i).messages
        for j in lists_seen(messages):
            ids = torch.tensor([encode(messages[:j], tokenizer, 0.0).ids + head])
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
            found[messages[j]["content"].startswith("take ")].append(float(logits.softmax(-1)[take]))
    return float(mannwhitneyu(found[True], found[False]).statistic) / (len(found[True]) * len(found[False]))


def lists_seen(messages: Sequence[Message]) -> list[int]:
    """Indices of the assistant turns that answer a list with empty hands, up to the first thing that is picked up."""
    found = []
    for j in range(3, len(messages), 2):
        shown = messages[j - 1]["content"]
        if shown.startswith("You pick up"):
            break
        if "you see a" in shown:
            found.append(j)
    return found


def figures(episodes: Sequence[Episode]) -> Figures:
    """Success in percent, in all and by split; shares of actions that did nothing and of repeated ones; turns an episode."""
    turns = sum(episode.turns for episode in episodes)
    answers = [message["content"] for episode in episodes for message in episode.messages if message["role"] == "user"]
    said = [[m["content"] for m in episode.messages if m["role"] == "assistant"] for episode in episodes]
    return {
        "success": 100 * float(np.mean([episode.success for episode in episodes])),
        **{
            split: 100 * float(np.mean([episode.success for episode in episodes if episode.split == split]))
            for split in ("seen", "unseen")
        },
        "inadmissible": answers.count("Nothing happens.") / turns,
        "repeated": sum(repeat_rate(texts) * len(texts) for texts in said) / turns,
        "turns": turns / len(episodes),
    }
