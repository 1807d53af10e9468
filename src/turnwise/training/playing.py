"""Who plays: the engine and the world around the policy of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from turnwise.config import build
from turnwise.data.chat import ChatTokens
from turnwise.envs.base import Environment
from turnwise.rollouts.play import Player
from turnwise.settings import Rollout


def player_of(
    cfg: DictConfig,
    rollout: Rollout,
    environment: Environment,
    chat: ChatTokens,
    model: str,
    tell: Callable[[str], None],
) -> Player:
    """The player of a configured run.

    Args:
        model: folder or id of the base policy.
        tell: told in one line what a person may want to know of the engine.

    Raises:
        InputError: the engine cannot be built.
    """
    folder = Path(cfg.paths.out) / "engine"
    engine = build(cfg, "engine", end_ids=chat.stop_ids, model=model, folder=folder, say=tell)
    return Player(
        engine,
        environment,
        chat,
        rollout.sampling,
        max_turns=rollout.turns,
        max_length=rollout.max_length,
        retries=rollout.retries,
        world_seconds=rollout.world_seconds,
        world_threads=rollout.world_threads,
    )
