"""The same rollouts through TRL's GRPOTrainer and through ours: advantages, loss, gradients and metrics must agree.

TRL generates, scores, normalises and computes its loss with its own code on a tiny random Qwen3; old and reference
log-probs are then moved away from the policy's, so that clipping and the KL have work to do.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.loss import Clipped, Counts, LossInputs
from turnwise.models.logprobs import selected_logprobs_and_entropy
from turnwise.types import RolloutTree, State, Task, Turn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")  # of its own deprecations

GROUPS, GROUP_SIZE, LENGTH, TEMPERATURE = 3, 4, 6, 0.7
TRL_EPS = 1e-4
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.4, 0.4], [1.0, 0.0, 0.0, 0.0]]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(29))])}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = Qwen3Config(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, eos_token_id=1, pad_token_id=0, tie_word_embeddings=False,
        initializer_range=0.3,
    )  # fmt: skip
    rows = [{"prompt": f"w{group} w{group + 4}"} for group in range(GROUPS) for _ in range(GROUP_SIZE)]
    arguments = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=len(rows), num_generations=GROUP_SIZE, max_completion_length=LENGTH,
        temperature=TEMPERATURE, beta=0.0, max_steps=1,
    )  # fmt: skip
    flat = [reward for group in REWARDS for reward in group]
    built = GRPOTrainer(
        model=Qwen3ForCausalLM(config), args=arguments, train_dataset=Dataset.from_list(rows),
        reward_funcs=lambda completions, **_: flat, processing_class=tokenizer,
    )  # fmt: skip
    built.current_gradient_accumulation_steps = 1
    built.model.train()
    return SimpleNamespace(trl=built, rows=rows)


@pytest.fixture(scope="module")
def rollouts(trainer):
    """One generation of TRL's, with old and reference log-probs up to 0.4 away from the policy's."""
    inputs = trainer.trl._generate_and_score_completions(trainer.rows)
    logprobs = policy(trainer.trl.model, inputs)[0].detach()
    generator = torch.Generator().manual_seed(5)
    for key in ("old_per_token_logps", "ref_per_token_logps"):
        inputs[key] = logprobs + 0.8 * (torch.rand(logprobs.shape, generator=generator) - 0.5)
    lengths = inputs["completion_mask"].sum(1)
    assert lengths.min() < lengths.max(), "sequences of one length would not tell the aggregations apart"
    return inputs


def policy(model, inputs):
    """Log-probs and entropies of the completions (B, T) from the hidden states."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    completion = inputs["completion_ids"]
    hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state[:, -completion.shape[1] - 1 : -1]
    found = selected_logprobs_and_entropy(
        hidden.flatten(0, 1), model.lm_head.weight, completion.flatten(), TEMPERATURE, chunk=7
    )
    return tuple(each.view_as(completion) for each in found)


def ours(model, inputs, loss: Clipped):
    logprobs, entropy = policy(model, inputs)
    mask = inputs["completion_mask"].bool()
    sequence_K = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    weight_K = torch.ones(len(sequence_K))
    return loss(
        LossInputs(
            logprobs_K=logprobs[mask], entropy_K=entropy[mask], weight_K=weight_K,
            old_logprobs_K=inputs["old_per_token_logps"][mask], ref_logprobs_K=inputs["ref_per_token_logps"][mask],
            advantage_K=inputs["advantages"][:, None].expand_as(mask)[mask],
            turn_K=sequence_K, sequence_K=sequence_K, counts=Counts.of(weight_K, sequence_K, sequence_K),
        )
    )  # fmt: skip


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


AGGREGATION = {
    "grpo": {"aggregation": "seq_mean_token_mean"},
    "dapo": {"aggregation": "token_mean"},
    "bnpo": {"aggregation": "token_mean"},
    "dr_grpo": {"aggregation": "constant", "constant_length": LENGTH},
}


@pytest.mark.parametrize("loss_type", AGGREGATION)
@pytest.mark.parametrize(
    ("level", "beta", "correction"),
    [
        ("token", 0.0, False),
        ("token", 0.3, False),
        ("token", 0.3, True),
        ("sequence", 0.0, False),
        ("sequence", 0.3, False),
    ],
)
@pytest.mark.parametrize("clip_high", [0.2, 0.28])
def test_loss_and_gradients_agree(trainer, rollouts, loss_type, level, beta, correction, clip_high) -> None:
    trl, low = trainer.trl, 0.1
    trl.loss_type, trl.importance_sampling_level = loss_type, level
    trl.beta, trl.args.use_bias_correction_kl = beta, correction
    trl.epsilon_low, trl.epsilon_high = low, clip_high
    trl._metrics["train"].clear()
    theirs = trl._compute_loss(trl.model, rollouts)
    their_gradients = gradients(trl.model, theirs)

    loss = Clipped(
        clip_low=low, clip_high=clip_high, ratio=level, kl_beta=beta, kl_importance=correction, **AGGREGATION[loss_type]
    )
    out = ours(trl.model, rollouts, loss)
    torch.testing.assert_close(out.loss, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(trl.model, out.loss), their_gradients, rtol=1e-4, atol=1e-6)

    logged = {name: values[-1] for name, values in trl._metrics["train"].items()}
    assert out.metrics["entropy"].value == pytest.approx(logged["entropy"], rel=1e-4)
    assert out.metrics["clip_fraction"].value > 0.05, "nothing is clipped: the case tests nothing"
    if level == "token":  # for sequences TRL averages over sequences, we over tokens
        assert out.metrics["clip_fraction_low"].value == pytest.approx(logged["clip_ratio/low_mean"])
        assert out.metrics["clip_fraction_high"].value == pytest.approx(logged["clip_ratio/high_mean"])
    if beta and not correction:
        assert out.metrics["kl_ref"].value == pytest.approx(logged["kl"], rel=1e-4)


@pytest.mark.parametrize("scale", [True, False])
def test_advantages_agree(trainer, scale) -> None:
    trainer.trl.beta, trainer.trl.scale_rewards = 0.0, "group" if scale else "none"
    theirs = trainer.trl._generate_and_score_completions(trainer.rows)["advantages"]
    # TRL divides by the sample std (Bessel) + 1e-4, we by the population std + eps
    bessel = math.sqrt((GROUP_SIZE - 1) / GROUP_SIZE) if scale else 1.0
    rule = GroupAdvantage(eps=TRL_EPS * bessel, scale=scale)
    turns = [Turn(parent=-1, action_ids=[1], logprobs=[-1.0]) for _ in range(GROUP_SIZE)]
    tree = RolloutTree(State(id="s", task=Task("toy", "train/0", "train"), ids=(1,)), turns)
    flat = [bessel * advantage for group in REWARDS for advantage in rule(tree, {"total": group}).advantage]
    torch.testing.assert_close(torch.tensor(flat), theirs, rtol=1e-5, atol=1e-6)
