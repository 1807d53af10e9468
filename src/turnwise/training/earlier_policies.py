"""Stores the weights of earlier policies, so that a resumed run can repeat rollouts that these policies sampled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from turnwise.training.module import PolicyModule


def remembered(module: PolicyModule) -> dict[str, Any]:
    """Returns the policy's ``version`` and copies of its trained ``weights``, in a form that a checkpoint can store. Of
    sharded weights, each process gets copies of its own shards.
    """
    weights = {name: p.detach().clone() for name, p in _parameters(module).items() if p.requires_grad}
    return {"version": module.version, "weights": weights}


def _parameters(module: PolicyModule) -> dict[str, torch.nn.Parameter]:
    """Returns the module's parameters by name. Of sharded parameters, each process gets its own shards. Parameters that
    are still gathered, because no backward pass followed a forward pass, are sharded again first.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    return dict(module.named_parameters())


@contextmanager
def become(module: PolicyModule, earlier: dict[str, Any] | None) -> Iterator[None]:
    """Gives ``module`` the weights and the version of the policy ``earlier`` within the ``with`` block. Meanwhile
    ``earlier`` holds those of ``module``, so no further copy of all weights is needed. If ``earlier`` is None, nothing
    changes.
    """
    if earlier is None:
        yield
        return
    _exchange(module, earlier)
    try:
        yield
    finally:
        _exchange(module, earlier)


@torch.no_grad()
def _exchange(module: PolicyModule, policy: dict[str, Any]) -> None:
    own = _parameters(module)
    for name, weight in policy["weights"].items():
        now = own[name].detach().clone()
        own[name].copy_(weight)
        weight.copy_(now)
    module.version, policy["version"] = policy["version"], module.version
