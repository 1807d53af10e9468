"""Builds the engine that samples from a run's policy, and the player that runs rollouts with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from turnwise.config.build_part import build
from turnwise.engines.spool_file import Spool
from turnwise.engines.spooled_engine import Spooled
from turnwise.rollouts.player import Player
from turnwise.runs.config_hash import config_hash
from turnwise.training.build_parts import BasePolicy, Parts, Settings
from turnwise.training.distributed import DistributedContext


def player_of(
    cfg: DictConfig, settings: Settings, parts: Parts, policy: BasePolicy, log: Callable[[str], None]
) -> Player:
    """Returns the player, which samples rollouts with the engine and the environment. The engine has no weights.

    Raises:
        InputError: the engine cannot be built.
    """
    chat, rollout = policy.chat, settings.rollout
    folder = settings.folder / "engine"
    engine = build(cfg, "engine", end_ids=chat.stop_ids, model=policy.source, folder=folder, say=log)
    return Player(
        engine,
        parts.env,
        chat,
        rollout.sampling,
        max_turns=rollout.turns,
        max_length=rollout.max_length,
        retries=rollout.retries,
        environment_seconds=rollout.environment_seconds,
        environment_threads=rollout.environment_threads,
        dialogues=settings.data.judging(parts.format),
    )


@contextmanager
def spooled(
    player: Player, cfg: DictConfig, distributed: DistributedContext, log: Callable[[str], None]
) -> Iterator[Player]:
    """Yields a player that also stores its samples on disk (``rollout.spool``), so that a killed run can reuse these
    samples after a restart.

    The files are removed when the block ends without an error. With ``rollout.spool=exact``, the engine draws the
    stored samples again after a restart, so that later samples have the same log-probs, bit for bit. Servers and
    ``engine.schedule=free`` cannot repeat log-probs exactly. With these engines, stored samples are not drawn again.
    """
    if cfg.rollout.spool is None:
        yield player
        return
    folder = Path(cfg.paths.out) / "spool"
    names = [f"{distributed.rank}-{number}.bin" for number in range(1 + cfg.rollout.staleness)]
    spools = [Spool(folder / name, config_hash(cfg)) for name in names]
    exact = cfg.rollout.spool == "exact" and not distributed.served and cfg.engine.get("schedule", "rounds") == "rounds"
    try:
        yield replace(player, engine=Spooled(player.engine, spools, exact, log))
    finally:
        for spool in spools:
            spool.close()
    shutil.rmtree(folder, ignore_errors=True)  # also removes files of earlier starts that had more processes
