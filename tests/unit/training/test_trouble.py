"""Gradients and weights that are not finite, and an update that does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.unit.quiet import random_trees
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig

from turnwise.config.schema import compose_config
from turnwise.config.settings import UpdateSettings
from turnwise.errors import Stopped
from turnwise.methods.credit import spread
from turnwise.methods.loss import Clipped, LossInputs, LossOutput
from turnwise.models.attention import use_tree_attention
from turnwise.rollouts.pack import Update, pack
from turnwise.shipped import tiny_path
from turnwise.training.build_run import Settings
from turnwise.training.policy_module import Passes, PolicyModule, recomputing

# -- trouble -----------------------------------------------------------------------------------------------------------

MakeModel = Callable[..., Any]


class Poisoned:
    """The clipped loss, with a gradient that is not a number where ``bad`` says so."""

    needs_reference = needs_entropy = False

    def __init__(self, bad: bool = True) -> None:
        self.bad, self.loss = bad, Clipped()

    def __call__(self, batch: LossInputs) -> LossOutput:
        output = self.loss(batch)
        return replace(output, loss=output.loss * float("nan")) if self.bad else output


class Greedy:
    """The clipped loss, asking the allocator for a petabyte where a micro-batch has more than ``most`` tokens."""

    needs_reference = needs_entropy = False

    def __init__(self, most: int) -> None:
        self.most, self.loss = most, Clipped()

    def __call__(self, batch: LossInputs) -> LossOutput:
        if len(batch.weight_K) > self.most:
            torch.empty(1 << 50)
        return self.loss(batch)


def update(batch_tokens: int = 400) -> Update:
    """Eight trees of different lengths, each a row of its own."""
    trees = random_trees([4 + 3 * i for i in range(8)])
    credits = [spread(tree, {0: 1.0 + i, 1: -0.5}) for i, tree in enumerate(trees)]
    views = [replace(credit, views={"outcome": [0.1, float(i)]}) for i, credit in enumerate(credits)]
    return pack(trees, views, row_tokens=64, batch_tokens=batch_tokens)


def module_of(make_model: MakeModel, loss: Any, **settings: Any) -> Any:
    module = PolicyModule(make_model("qwen3", lora=True), loss, UpdateSettings(**{"learning_rate": 1e-4, **settings}))
    optimizer, schedule = module.configure_optimizers()
    module.optimizers = lambda: optimizer[0]  # type: ignore[method-assign]  # Lightning's belong to a trainer
    module.lr_schedulers = lambda: schedule[0]  # type: ignore[method-assign]
    return module


def weights(module: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters() if p.requires_grad])


def test_updates_that_are_not_finite_change_nothing_are_counted_and_end_the_run(make_model: MakeModel) -> None:
    loss = Poisoned()
    module = module_of(make_model, loss, max_skips=3)
    before = weights(module)
    module.training_step(update())
    module.training_step(update())
    assert torch.equal(weights(module), before) and module.last_metrics["skipped"] == 2
    loss.bad = False
    module.training_step(update())
    assert not torch.equal(weights(module), before) and module.skips_in_a_row == 0
    loss.bad = True
    kept: dict[str, Any] = {"state_dict": {}}
    module.training_step(update())
    module.training_step(update())
    module.on_save_checkpoint(kept)
    with pytest.raises(Stopped, match="learning_rate"):
        module.training_step(update())
    resumed = module_of(make_model, loss, max_skips=3)  # a restart does not begin to count again
    resumed.on_load_checkpoint(kept)
    with pytest.raises(Stopped):
        resumed.training_step(update())
    assert resumed.skipped == 5


def test_a_step_beyond_what_floats_hold_stops_before_it_is_saved(make_model: MakeModel) -> None:
    module = module_of(make_model, Clipped(), learning_rate=1e39)
    with pytest.raises(Stopped):
        module.training_step(update())


def gradient(module: Any, given: Update) -> torch.Tensor:
    module.zero_grad(set_to_none=True)
    module._add_gradients(given)
    return torch.cat([p.grad.flatten() for p in module.model.parameters() if p.grad is not None])


def test_an_update_that_does_not_fit_is_cut_and_gives_the_same_gradient(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    given = update()
    assert [len(packed.ids_BS) for packed in given.batches] == [8]
    whole = gradient(module_of(make_model, Clipped()), given)
    module = module_of(make_model, Greedy(most=30))  # of 64 tokens: two halvings
    torch.testing.assert_close(gradient(module, given), whole, rtol=1e-5, atol=1e-6)
    assert module.halvings == 2 and "into 4 from now on" in caplog.text
    caplog.clear()
    gradient(module, given)  # the next one is cut at once
    assert not caplog.records
    with pytest.raises(Stopped, match="row_tokens"):
        gradient(module_of(make_model, Greedy(most=3)), given)


# -- passes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [False, True])
def test_threads_give_the_gradients_and_metrics_of_one_pass_after_the_other(make_model, lora):
    model = make_model("qwen3", lora)
    grown = random_trees([10 + 3 * i for i in range(7)])
    update = pack(grown, [spread(tree, {0: 1.0, 1: -0.5}) for tree in grown], batch_tokens=40)
    assert len(update.batches) > 3
    module = PolicyModule(model, Clipped(kl_beta=0.1 if lora else 0.0), UpdateSettings(1e-4))
    found = []
    for threads in (1, 3):
        module.passes = Passes(threads)
        module.zero_grad(set_to_none=True)
        metrics = module._add_gradients(update)
        found.append((metrics, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    (one_metrics, one), (many_metrics, many) = found
    assert one.norm() > 0
    assert torch.allclose(one, many, rtol=1e-5, atol=1e-7)
    for a, b in zip(one_metrics, many_metrics, strict=True):
        assert a.keys() == b.keys()
        assert all(a[key].value == pytest.approx(b[key].value, rel=1e-5, abs=1e-7) for key in a)


# -- adapter inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_equal_and_inputs_are_not_cast(
    autocast: bool, recompute: bool, make_model: Callable[..., Any]
) -> None:
    model = make_model("qwen3", lora=True)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # a new adapter has zeros here, and then lora_A has no gradient
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(len(name)))
        elif not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)  # as conf/policy/qwen3_*.yaml
    use_tree_attention(model)
    seen: set[torch.dtype] = set()
    for name, part in model.named_modules():
        if name.endswith("lora_A.default"):
            part.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].dtype))
    trees = random_trees([9], [4, 4])
    module, work = (
        PolicyModule(model, Clipped(), UpdateSettings(1e-4, recompute=recompute)),
        pack(trees, [spread(trees[0], {0: 1.0, 1: -1.0})]),
    )
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for batch in work.batches:
            with recomputing(module.recomputed):
                module.loss(module.loss_inputs(batch, work)).loss.backward()
        wanted = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        assert seen == {torch.float32}
        seen.clear()
        model.zero_grad(set_to_none=True)
        module._add_gradients(work)
    assert seen == {torch.bfloat16 if autocast else torch.float32}
    assert len(wanted) > 10
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter.grad, wanted[name]), name


# -- rate --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "iterations", "steps", "rates"),
    [
        ({"warmup": 1, "decay": 0.5}, 8, range(9), [0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]),
        ({"warmup": 3}, 10, [0, 1, 3, 9, 50], [0.25, 0.5, 1, 1, 1]),  # without decay it stays
        ({"warmup": 1, "decay": 0.5}, 0, [0], [0.5]),  # a run that is only measured
    ],
)
def test_the_rate_rises_stays_and_falls_by_hand(settings, iterations, steps, rates):
    module = PolicyModule(torch.nn.Linear(1, 1), Clipped(), UpdateSettings(1e-4, **settings), iterations=iterations)
    assert [module.rate(step) for step in steps] == pytest.approx(rates)
    module.configure_optimizers()


# -- micro batches fit -------------------------------------------------------------------------------------------------

CONF = Path(__file__).parents[3] / "conf"
REAL = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}


def fitted(model: torch.nn.Module, *overrides: str) -> tuple[int, int]:
    update = Settings.of(compose_config(["method=sft", *overrides], CONF)).fitting(model).update
    return update.row_tokens, update.batch_tokens


def test_micro_batches_follow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(LlamaConfig(**REAL))
    # 30 layers x (8 x 576 + 4 x 1536) float32 of a token: 1.29 MB; two rows side by side in 2 GB, or two micro-batches
    # of short rows in half of that
    assert fitted(real) == (775, 387)
    assert fitted(real, "update.memory_gb=8") == (2048, 1550)
    assert fitted(real, "update.memory_gb=null") == fitted(real, "update.recompute=true") == (2048, 2048)
    assert fitted(AutoModelForCausalLM.from_pretrained(tiny_path())) == (2048, 2048)


# -- earlier policies --------------------------------------------------------------------------------------------------


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
