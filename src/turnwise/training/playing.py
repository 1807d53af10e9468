"""Who plays: the engine and the world around the policy of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from turnwise.config.schema import build
from turnwise.config.settings import RolloutSettings
from turnwise.data.chat import ChatTokens
from turnwise.engines.spool import Spool
from turnwise.engines.spooled import Spooled
from turnwise.envs.environment import Environment
from turnwise.rollouts.local import Verifier
from turnwise.rollouts.play import Player
from turnwise.runs.identity import config_hash
from turnwise.training.distributed import DistributedContext


def player_of(
    cfg: DictConfig,
    rollout: RolloutSettings,
    environment: Environment,
    chat: ChatTokens,
    model: str,
    tell: Callable[[str], None],
    dialogues: Verifier,
) -> Player:
    """The player of a configured run.

    Args:
        model: folder or id of the base policy.
        tell: told in one line what a person may want to know of the engine.
        dialogues: who judges replies of dialogues that no environment plays.

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
        environment_seconds=rollout.environment_seconds,
        environment_threads=rollout.environment_threads,
        dialogues=dialogues,
    )


@contextmanager
def spooled(
    player: Player, cfg: DictConfig, distributed: DistributedContext, tell: Callable[[str], None]
) -> Iterator[Player]:
    """The player of a run's collections: what it samples is kept in the run's folder until the block ends well.

    A server's log-probs depend on what shares its batches, so there is nothing to be exact about: what was kept stands.
    """
    if cfg.rollout.spool is None:
        yield player
        return
    folder = Path(cfg.paths.out) / "spool"
    names = [f"{distributed.rank}.bin", f"{distributed.rank}-odd.bin"][: 1 + cfg.rollout.staleness]
    spools = [Spool(folder / name, config_hash(cfg)) for name in names]
    exact = cfg.rollout.spool == "exact" and not distributed.served
    try:
        yield replace(player, engine=Spooled(player.engine, spools, exact, tell))
    finally:
        for spool in spools:
            spool.close()
    shutil.rmtree(folder, ignore_errors=True)  # with the files of starts that had more processes
