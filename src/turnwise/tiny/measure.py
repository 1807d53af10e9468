"""What a checkpoint can do, measured by the code that measures a run: held-out episodes and the skills' scores."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from turnwise.data.chat import ChatTokens
from turnwise.engines.base import Sampling
from turnwise.engines.tree import TreeEngine
from turnwise.envs.base import Environment
from turnwise.evaluation.suites import Episode, answer_skills, openings, play_tasks, repeat_rate
from turnwise.rollouts.play import Player

MODES = {"greedy": Sampling(temperature=0), "sampled": Sampling()}


def measure(model: Any, tokenizer: Any, env: Environment, tasks: int, items: int) -> dict[str, dict[str, float]]:
    """Household figures of each decoding mode, and the mean score of each skill under ``skills`` (a share).

    The tasks and items are the first that a run evaluates on, half of the tasks in seen rooms; each is played once a mode
    under a run's draws.

    Args:
        model: whose weights are measured; it is left as it is.
        tasks: how many, at least two.
        items: of each skill.
    """
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids, copy=False)
    engine.load_weights(deepcopy(model).eval(), version=0)
    half = tasks // 2
    chosen = [*env.tasks("seen", tasks - half), *env.tasks("unseen", half)]
    opening = openings(env, chat)
    found = {}
    for mode, sampling in MODES.items():
        player = Player(engine, env, chat, sampling)
        found[mode] = household(play_tasks(player, opening, chosen, 1, mode, "eval"))
    scores: dict[str, list[float]] = {}
    for answer in answer_skills(engine, chat, items, seed=0):
        scores.setdefault(answer.suite, []).append(answer.score)
    return {**found, "skills": {suite: float(np.mean(values)) for suite, values in scores.items()}}


def household(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success in percent, in all and by split; shares of inadmissible and of repeated actions; turns an episode."""
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
