"""The weights of one update ago."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.training.module import PolicyModule


def module_at(weight: float, version: int) -> PolicyModule:
    module = PolicyModule(torch.nn.Linear(1, 1, bias=False), Clipped(), UpdateSettings(1e-4))
    with torch.no_grad():
        module.model.weight.fill_(weight)
    module.version = version
    return module


def test_it_is_what_it_was_and_then_again_what_it_is() -> None:
    module = module_at(1.0, 3)
    module.earlier = [module.remembered()]
    with torch.no_grad():
        module.model.weight.fill_(2.0)
    module.version = 4
    with module.become(module.earlier[0]):
        assert (module.model.weight.item(), module.version) == (1.0, 3)
    assert (module.model.weight.item(), module.version) == (2.0, 4)


def test_what_was_never_told_stays_as_it_is() -> None:
    module = module_at(1.0, 3)
    with module.become(None):
        assert (module.model.weight.item(), module.version) == (1.0, 3)
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    assert "earlier" not in checkpoint


def test_a_checkpoint_knows_both() -> None:
    module = module_at(1.0, 3)
    module.earlier = [module.remembered()]
    module.version = 4
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    again = module_at(2.0, 0)
    again.on_load_checkpoint(checkpoint)
    assert again.version == 4
    with again.become(again.earlier[0]):
        assert (again.model.weight.item(), again.version) == (1.0, 3)
    assert again.model.weight.item() == 2.0


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_of_sharded_weights_the_shards_are_remembered() -> None:
    """A pass without gradients leaves the outermost module's weights gathered."""
    module = module_at(1.0, 3)
    fully_shard(module.model, mesh=init_device_mesh("cpu", (1,)))
    with torch.no_grad():
        module.model(torch.ones(1, 1))
    assert not isinstance(module.model.weight, DTensor)
    earlier = module.remembered()
    assert [type(weight) for weight in earlier["weights"].values()] == [DTensor]
    with torch.no_grad():
        module.model.weight.fill_(2.0)
        module.model(torch.ones(1, 1))
    with module.become(earlier):
        assert module.model.weight.full_tensor().item() == 1.0
        assert module.model(torch.ones(1, 1)).item() == 1.0
    assert module.model(torch.ones(1, 1)).item() == 2.0
