"""Reads the rank of this process among the processes of its run from the launcher's environment variables."""

from __future__ import annotations

import os


def is_first() -> bool:
    """Returns whether this is the first or only process of its run."""
    return not rank().strip("0.")


def rank() -> str:
    """Returns the rank of this process: ``0`` for a single process, ``NODE.LOCAL`` if the launcher gives both ranks."""
    for names in (("RANK",), ("NODE_RANK", "LOCAL_RANK"), ("SLURM_PROCID",)):
        if names[-1] in os.environ:
            return ".".join(os.environ.get(name, "0") for name in names)
    return "0"
