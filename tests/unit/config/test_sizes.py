from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from turnwise.config.check import check_config
from turnwise.config.schema import ConfigError, compose_config
from turnwise.config.sizes import too_large

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize(
    "override",
    [
        *("rollout.max_refills=1000000000", "rollout.environment_seconds=1e300", "allocator.group_size=100000000"),
        *("update.learning_rate=1e30", "eval.items=100000000", "env.horizon=1000000000", "states.k=100000000"),
    ],
)
def test_numbers_with_which_no_run_ends(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config(["method=pivotrl", override], CONF))
    (mistake,) = refused.value.mistakes
    assert mistake.startswith(f"{override.partition('=')[0]}: ")


def test_every_shipped_number_is_within_its_bound() -> None:
    for path in CONF.rglob("*.yaml"):
        if path.parts[-2] not in ("sweep", "launcher", "help"):
            group = path.parent.relative_to(CONF).parts
            alone = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
            assert too_large({group[0]: alone} if group else alone) == [], path  # type: ignore[dict-item, arg-type]
