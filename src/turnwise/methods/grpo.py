"""GRPO (arXiv:2402.03300) on whole episodes: the policy plays each task from its start, and the outcome is the reward.
An iteration plays 8 tasks 16 times each in the household, whose episodes take up to 30 turns; 12 iterations take
minutes on two cores. Scales for large models set their own numbers. Unlike the paper, it leaves out groups of equal rewards
(step 5) and has no KL term (step 7). GRPO has no code of its own: each step names the file that has it.

The algorithm. A step names the files that do it, below src/turnwise, and the parts and keys that decide it; the class of
a part is named in conf/GROUP/OPTION.yaml.

1. for each iteration: draw B tasks; the start of each task is a state s
    [methods/states.py] states=task_starts, rollout.states=8
2. roll out G episodes from each s with pi_old, to their end
    [methods/allocate.py, rollouts/player.py] allocator=uniform, allocator.group_size=16, rollout.turns=null
3. let every episode run (no gate)
    [methods/gate.py] gate=never
4. r_i = 1 where episode i is won, else 0
    [methods/reward.py] reward=outcome, reward.of=won
5. A_i = (r_i - mean) / (std + eps) within the group (PivotRL Eq. 1); groups of equal rewards are left out
    [methods/credit.py] advantage=group, advantage.zero_variance=drop
6. w_t = pi / pi_old of each token; min(w_t A_i, clip(w_t) A_i). With one step on fresh rollouts w_t is 1, so nothing is
    clipped
    [methods/loss.py] loss=clipped, loss.ratio=token, loss.clip_low=0.2, loss.clip_high=0.2
7. J: mean over episodes, without those left out, of the mean over the tokens of their actions
    [methods/loss.py] loss.aggregation=seq_mean_token_mean, loss.kl_beta=0.0
8. one AdamW step on -J, with the gradient clipped
    [training/policy_module.py] update.steps=1, update.clip_norm=1.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnwise.methods.method import Method, key


@dataclass(frozen=True, slots=True)
class GRPO(Method):
    name: ClassVar[str] = "grpo"

    batch: int = key("rollout.states", 8)  # B, tasks of an update
    group_size: int = key("allocator.group_size", 16)  # G
    clip_low: float = key("loss.clip_low", 0.2)
    clip_high: float = key("loss.clip_high", 0.2)
    kl_beta: float = key("loss.kl_beta", 0.0)


@dataclass(frozen=True, slots=True)
class DAPO(GRPO):
    """DAPO (arXiv:2503.14476) on whole episodes: clip-higher, dynamic sampling and the mean over tokens, without its
    overlong shaping. The sizes are those of grpo.

    The algorithm is that of grpo, but for these steps:

    5. A_i as before; groups of equal rewards are replaced by newly drawn ones, at most 4 times, then left out
        [methods/credit.py, rollouts/collect.py] advantage=group, advantage.zero_variance=refill, rollout.max_refills=4
    6. min(w_t A_i, clip(w_t) A_i); the clip range is wider above 1 than below
        [methods/loss.py] loss=clipped, loss.ratio=token, loss.clip_low=0.2, loss.clip_high=0.28
    7. J: mean over all tokens of the update
        [methods/loss.py] loss.aggregation=token_mean, loss.kl_beta=0.0
    """

    name: ClassVar[str] = "dapo"

    clip_high: float = key("loss.clip_high", 0.28)
    max_refills: int = key("rollout.max_refills", 4)


@dataclass(frozen=True, slots=True)
class DrGRPO(GRPO):
    """Dr.GRPO (arXiv:2503.20783) on whole episodes: it divides neither by the standard deviation of a group nor by the
    length of a sample. The sizes are those of grpo.

    The algorithm is that of grpo, but for these steps:

    5. A_i = r_i - mean; groups of equal rewards stay in the mean with A_i = 0
        [methods/credit.py] advantage=group, advantage.scale=false, advantage.zero_variance=keep
    7. J: sum over tokens / (episodes x a constant length, that of the longest action, rollout.sampling.max_tokens)
        [methods/loss.py] loss.aggregation=constant, loss.constant_length=24, loss.kl_beta=0.0
    """

    name: ClassVar[str] = "dr_grpo"
