"""The parts of docs/extending.md, which lie outside the package, in a whole run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from turnwise.config.schema import compose_config
from turnwise.env import EnvironmentFault, Step
from turnwise.errors import Stopped
from turnwise.runs.result_file import read_result
from turnwise.training.loop import run
from turnwise_worlds.household.state import HouseholdSession

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
QUICK = ["iterations=1", "eval.tasks=2", "eval.attempts=0", "eval.items=1", "logger.wandb=null"]


@pytest.mark.slow
def test_parts_of_ones_own_train_together(
    small: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in re.findall(r"^```(?:python|yaml)\n# (mine/\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    lines = re.findall(r"^python train.py (method=grpo .*?) hydra\.searchpath", PAGE, re.MULTILINE)
    own = [*dict.fromkeys(word for line in lines for word in line.split())]
    assert {word.partition("=")[0] for word in own} == {"method", "env", "reward", "advantage", "gate"}
    search = f"hydra.searchpath=[file://{tmp_path / 'mine' / 'conf'}]"
    cfg: DictConfig = compose_config([*small("grpo"), *QUICK, *own, search], ROOT / "conf")
    run(cfg)
    result = read_result(tmp_path / "run")
    assert result.env == "thermostat" and result.in_domain.tasks == 2
    trees = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "train.jsonl").read_text().splitlines()]
    assert trees
    for tree in trees:
        rewards = tree["rewards"]
        assert len(rewards["total"]) == cfg.allocator.group_size
        for won, turns, total in zip(rewards["won"], rewards["turns"], rewards["total"], strict=True):
            assert total == pytest.approx(won - 0.02 * turns)
    for module in ("thermostat", "brief", "fading", "unanimous"):
        sys.modules.pop(module, None)


@pytest.mark.slow
@pytest.mark.parametrize(("splits", "error"), [(("train", "seen", "unseen"), EnvironmentFault), (("train",), Stopped)])
def test_a_world_that_always_fails_ends_the_run_without_a_result(
    small: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    splits: tuple[str, ...],
    error: type[Exception],
) -> None:
    step = HouseholdSession.step

    def fails(self: HouseholdSession, action: str) -> Step:
        if self.task.split in splits:
            raise KeyError("missing")
        return step(self, action)

    monkeypatch.setattr(HouseholdSession, "step", fails)
    with pytest.raises(error):
        run(compose_config([*small("grpo"), *QUICK, "update.allow_empty=false"], ROOT / "conf"))
    assert not (tmp_path / "run" / "result.json").exists()
    assert (tmp_path / "run" / "rollouts").exists() == (error is Stopped)  # the first ends before it trains
