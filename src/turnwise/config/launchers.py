"""Checks how runs and their processes are launched: by a Hydra launcher, or by torchrun or Slurm."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from turnwise.config.schema import ConfigError
from turnwise.files import read_yaml

# Hydra's name of a launcher -> the module and the package that provide it
_PLUGINS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", "hydra-joblib-launcher"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", "hydra-submitit-launcher"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "hydra-submitit-launcher"),
    "ray": ("hydra_plugins.hydra_ray_launcher", "hydra-ray-launcher"),
}
_NUMBERS = """
    RANK LOCAL_RANK NODE_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT JSM_NAMESPACE_RANK
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS
"""  # environment variables with which a launcher tells each process its rank and the number of processes
_LOOKS_ONLY = {"--dry-run", "--cfg", "-c", "--help", "-h", "--info", "-i"}


def is_sweep(arguments: Iterable[str]) -> bool:
    return any(argument.startswith("sweep=") for argument in arguments)


def refuse_config_of_many(arguments: Sequence[str]) -> None:
    """Refuses to print the configuration of several runs, because Hydra prints that of one run only."""
    shown = next((a for a in arguments if a.partition("=")[0] in ("--cfg", "-c", "--info", "-i")), None)
    if shown is None:
        return
    if is_sweep(arguments):
        remedy = "sweep= starts many: --dry-run lists them, and conf/sweep/ has the overrides of each row"
    elif any(a in ("-m", "--multirun") for a in arguments):
        remedy = "leave out -m, and give one value for each key"
    else:
        return
    raise ConfigError([f"{shown}: it prints the configuration of one run; {remedy}"])


def refuse_launcher(arguments: Sequence[str], folder: Path) -> None:
    """Refuses a launcher whose package is not installed, and a Slurm launcher on a machine without Slurm. The
    ConfigError says what to install, or where to start the command. ``folder`` is the configuration folder.
    """
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith("hydra/launcher=")]
    if not given:
        return
    found = _stands_on(given[-1], folder)
    module, package = _PLUGINS.get(found, (None, ""))
    if module is not None and find_spec(module) is None:
        raise ConfigError(
            [f"hydra/launcher={given[-1]}: this needs {package}, which is not installed here; pip install {package}"]
        )
    launches = any(a in ("-m", "--multirun") for a in arguments) or is_sweep(arguments)
    if found == "submitit_slurm" and launches and not _LOOKS_ONLY & set(arguments) and shutil.which("srun") is None:
        raise ConfigError(
            [
                f"hydra/launcher={given[-1]}: srun is not on this machine's PATH, so no job can be submitted to Slurm; "
                "start the command on a login node of the cluster, or choose hydra/launcher=local_jobs"
            ]
        )


def refuse_processes(environment: Mapping[str, str]) -> None:
    """Raises a ConfigError if environment variables of torchrun or Slurm are inconsistent: if one of them is not a
    whole number, or if a rank is not below the number of processes. Lightning would fail, or a process would wait for
    other processes that do not exist.
    """
    remedy = "start the run with torchrun or srun, or unset the variable to run one process"
    for name in _NUMBERS.split():
        if name in environment and not environment[name].isdecimal():
            raise ConfigError(
                [f"the environment variable {name}={environment[name]!r} is not a whole number; {remedy}"]
            )
    processes = environment.get("WORLD_SIZE", "1")
    for name, count in (("RANK", processes), ("LOCAL_RANK", environment.get("LOCAL_WORLD_SIZE", processes))):
        if int(environment.get(name, "0")) >= int(count):
            raise ConfigError(
                [
                    f"the environment variable {name}={environment[name]} must be below the number of processes, "
                    f"{count}; {remedy}"
                ]
            )


def took_no_job(error: BaseException) -> bool:
    """Returns whether an error means that Slurm refused a job, for example because of an unknown account."""
    return type(error).__module__.startswith("submitit.") and type(error).__name__ == "FailedJobError"


def _stands_on(name: str, folder: Path) -> str:
    """Returns the name of the Hydra launcher on which the file ``conf/hydra/launcher/<name>.yaml`` is based, or
    ``name`` if there is no such file.
    """
    for _ in range(8):  # Hydra itself refuses files that refer to each other in a circle
        path = folder / "hydra" / "launcher" / f"{name}.yaml"
        content = read_yaml(path) if path.is_file() else None
        below = content.get("defaults") if isinstance(content, dict) else None
        if not (isinstance(below, list) and below and isinstance(below[0], str)):
            break
        name = below[0]
    return name
