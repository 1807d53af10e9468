"""Two seeds by each launcher of one machine, against the same seeds one after the other: the same weights, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["trainer.max_epochs=2", "eval.tasks=2", "eval.attempts=0", "eval.items=1", "logger.wandb=null"]
LAUNCHERS = {
    "joblib_2": ("hydra_plugins.hydra_joblib_launcher", []),
    "local_jobs": ("hydra_plugins.hydra_submitit_launcher", ["hydra.launcher.timeout_min=20"]),
    "ray": ("hydra_plugins.hydra_ray_launcher", ["+hydra.launcher.ray.init.num_cpus=2"]),
}


def there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def launched(folder: Path, overrides: list[str], *launcher: str) -> dict[str, dict[str, list[float]]]:
    """The trained weights of seeds 0 and 1."""
    places = [f"paths.out={folder}/seed${{seed}}", f"paths.cache={folder}/cache${{seed}}"]
    kept = [o for o in overrides if not o.startswith("paths.")]
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "-m",
        f"hydra.sweep.dir={folder}/sweep",
        *launcher,
        *kept,
        *places,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    done = subprocess.run(
        [*command, *SHORT, "seed=0,1"], env=environment, cwd=folder.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = {}
    for seed in (0, 1):
        weights = load_file(folder / f"seed{seed}" / "adapter" / "adapter_model.safetensors")
        found[f"seed{seed}"] = {name: tensor.flatten().tolist() for name, tensor in weights.items()}
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_who_launches_a_run_changes_nothing_in_it(small: Callable[..., list[str]], tmp_path: Path) -> None:
    """Launchers that are extras and not installed are named: they are not tested."""
    overrides = small("pivotrl")
    plain = launched(tmp_path / "plain", overrides)
    assert plain["seed0"] != plain["seed1"]
    absent = [name for name, (module, _) in LAUNCHERS.items() if not there(module)]
    assert not set(absent) - {"ray"}, f"not installed: {absent}"
    for name in sorted(set(LAUNCHERS) - set(absent)):
        assert launched(tmp_path / name, overrides, f"hydra/launcher={name}", *LAUNCHERS[name][1]) == plain, name
