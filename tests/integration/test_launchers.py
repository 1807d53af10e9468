"""Two seeds by each launcher of one machine, against the same seeds one after the other: the same weights, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.integration.conftest import ROOT, SMALL
from torch import Tensor

SHORT = [
    *("method=pivotrl", "states.keep=all", "states.k=2", "logger.wandb=null", "seed=0,1"),
    *("iterations=2", "eval.tasks=2", "eval.attempts=0", "eval.items=1"),
]
LAUNCHERS = {
    "joblib_2": [],
    "local_jobs": ["hydra.launcher.timeout_min=60"],
    "ray": ["+hydra.launcher.ray.init.num_cpus=2"],
}
pytestmark = pytest.mark.slow


def launched(folder: Path, policy: Path, *launcher: str) -> dict[str, Tensor]:
    """The trained weights of both seeds, by seed and name."""
    places = [f"paths.out={folder}/seed${{seed}}", f"paths.cache={folder}/cache${{seed}}", f"policy.model={policy}"]
    kept = [o for o in SMALL if not o.startswith(("iterations", "eval."))]
    command = [sys.executable, str(ROOT / "train.py"), "-m", f"hydra.sweep.dir={folder}/sweep", *launcher]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    done = subprocess.run(
        [*command, *kept, *places, *SHORT], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"scripts/report.py {folder} --html" in done.stdout  # the command that compares the runs, after their table
    return {
        f"{seed} {name}": weight
        for seed in (0, 1)
        for name, weight in load_file(folder / f"seed{seed}" / "adapter" / "adapter_model.safetensors").items()
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, random_policy: Path) -> dict[str, Tensor]:
    weights = launched(tmp_path_factory.mktemp("plain"), random_policy)
    assert any((weight != weights[f"1 {name[2:]}"]).any() for name, weight in weights.items() if name[0] == "0")
    return weights


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_who_launches_a_run_changes_nothing_in_it(
    launcher: str, plain: dict[str, Tensor], random_policy: Path, tmp_path: Path
) -> None:
    if launcher == "ray" and find_spec("ray") is None:
        pytest.skip("Ray's launcher is NOT tested: pip install hydra-ray-launcher")
    weights = launched(tmp_path, random_policy, f"hydra/launcher={launcher}", *LAUNCHERS[launcher])
    assert weights.keys() == plain.keys()
    assert all((weight == plain[name]).all() for name, weight in weights.items())
