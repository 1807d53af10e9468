"""Where a run keeps what its collections sample, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from turnwise.engines.engine import Sampling
from turnwise.engines.spooled_engine import Spooled
from turnwise.engines.tree_engine import TreeEngine
from turnwise.envs.household import HouseholdEnv
from turnwise.rollouts.player import Player
from turnwise.training.build_parts import spooled
from turnwise.training.distributed import DistributedContext


@pytest.fixture
def player() -> Player:
    chat: Any = None  # nothing is played
    return Player(TreeEngine([5]), HouseholdEnv(horizon=2), chat, Sampling())


def configuration(out: Path, spool: str | None) -> DictConfig:
    return OmegaConf.create({"paths": {"out": str(out)}, "rollout": {"spool": spool, "staleness": 0}, "engine": {}})


def test_without_a_spool_the_player_is_the_same(player: Player, tmp_path: Path) -> None:
    with spooled(player, configuration(tmp_path, None), DistributedContext(), print) as playing:
        assert playing is player
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mode", "served", "exact"), [("exact", False, True), ("quick", False, False), ("exact", True, False)]
)
def test_what_is_kept_stays_when_training_breaks_off_and_goes_when_it_ends(
    player: Player, tmp_path: Path, make_model: Any, mode: str, served: bool, exact: bool
) -> None:
    cfg, distributed = configuration(tmp_path, mode), DistributedContext(served=served)
    training = spooled(player, cfg, distributed, print)
    playing = training.__enter__()
    playing.engine.load_weights(make_model("qwen3", False), 4)
    assert not training.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert isinstance(playing.engine, Spooled) and playing.engine.exact is exact
    assert playing.engine.version == player.engine.version == 4 and playing.tally is player.tally
    assert (tmp_path / "spool" / "0-0.bin").stat().st_size > 0
    (tmp_path / "spool" / "1.bin").write_bytes(b"of a start with two processes")
    with spooled(player, cfg, distributed, print):
        assert (tmp_path / "spool").exists()
    assert not (tmp_path / "spool").exists()


def test_it_is_no_part_of_a_configurations_identity(tmp_path: Path, player: Player) -> None:
    engines = []
    for mode in ("exact", "quick"):
        with spooled(player, configuration(tmp_path, mode), DistributedContext(), print) as playing:
            engines.append(playing.engine)
    assert isinstance(engines[0], Spooled) and isinstance(engines[1], Spooled)
    assert engines[0].spools[0].of == engines[1].spools[0].of
