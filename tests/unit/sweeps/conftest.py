"""A folder of two sweep files, small enough to know by heart."""

from __future__ import annotations

from pathlib import Path

import pytest

TABLE = """
paper: P
entry: Table 1
title: Table 1 of P
seeds: [0, 1]
columns: {score: in_domain.after, other: null}
scales: {paper: scale=paper_p}
rows:
  base: {label: Base, overrides: method=sft trainer.max_epochs=0, numbers: {score: 10.0}}
  ours: {overrides: method=pivotrl, at: {tiny: rollout.states=8}, numbers: {score: 20.0, other: 1.0}}
  big: {overrides: method=grpo, needs: {tiny: one size is shipped, paper: "the corpus: data.file=..."}}
  theirs: {numbers: {score: 30.0}}
directions:
  in_domain.after: [ours > base, ours < theirs, big > base - 2]
"""
FIGURE = """
paper: P
entry: Figure 1
title: Figure 1 of P
rows:
  ours: {same: p_tab1/ours}
  big: {same: p_tab1/big}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "p_tab1.yaml").write_text(TABLE)
    (tmp_path / "conf" / "sweep" / "p_fig1.yaml").write_text(FIGURE)
    return tmp_path / "conf"
