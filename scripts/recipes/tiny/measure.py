"""Measures a checkpoint: held-out episodes and skills, as a run is evaluated, and how well the base reads lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from scripts.recipes.tiny.corpus import encode

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.env import Environment
from turnwise.evaluation.suites import Episode, answer_skills, play_tasks, repeat_rate
from turnwise.rollouts.environment_steps import Openings
from turnwise.rollouts.player import Player
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
    """Measures a model on environments (``worlds``) and on skills.

    Under ``worlds``, the result holds environment -> decoding mode -> numbers (:func:`figures`), and under ``skills``
    the mean score of each skill as a share. The tasks and items are the first ones on which a run is evaluated, half of
    the tasks from each held-out split. Each task is played once in each mode with the random draws of a run.

    Args:
        worlds: the environments by name.
        tasks: number of tasks of each environment, at least two.
        items: number of items of each skill.
        max_tokens: greatest number of tokens of a reply.
    """
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids, copy=False)
    engine.load_weights(deepcopy(model).cpu().eval(), version=0)
    half = tasks // 2
    found: dict[str, dict[str, Figures]] = {}
    for name, env in worlds.items():
        chosen = [*env.tasks("seen", tasks - half), *env.tasks("unseen", half)]
        opening = Openings(env, chat)
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
    """Returns how well P(take) separates lists with the task's object from lists without it (0.5: chance, 1: perfect).

    The value is the area under the ROC curve (Mann-Whitney), over the lists that the good expert sees in ``tasks``
    held-out tasks before it takes anything. The expert's next action is the label.
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
    """Returns the indices of the assistant turns that follow a list, up to the turn that takes the first object."""
    found = []
    for j in range(3, len(messages), 2):
        shown = messages[j - 1]["content"]
        if shown.startswith("You pick up"):
            break
        if "you see a" in shown:
            found.append(j)
    return found


def figures(episodes: Sequence[Episode]) -> Figures:
    """Returns success in percent (overall and by split), shares of actions without effect and of repeated actions, and
    turns per episode.
    """
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
