"""PivotRL (arXiv:2603.21383): the policy acts once at pivots, expert turns whose sampled outcomes are mixed and mostly
failures; any action that the verifier accepts is rewarded (Eqs. 5-6). Where all samples of a state have the same
reward, each advantage is 0, and a group-normalised method learns nothing from the rewards.

The algorithm. A step names the files that do it, below src/turnwise, and the parts and keys that decide it; the class of
a part is named in conf/GROUP/OPTION.yaml.

1. D_cand: every assistant turn of every expert trajectory, (s, a*), without those that the environment excludes (Eq. 3); a* may
    be a mistake, because 70 % of the trajectories are the clumsy expert's
    [methods/states.py, training/candidates.py] data.trajectories=500, data.good=0.3
2. draw K actions at each s from pi_0, the policy before training; mu and sigma^2 of the verifier's verdicts on them (Eq. 4)
    [training/profile.py, methods/states.py] states.k=8
3. D_pivot: the turns with sigma^2 > 0 and mu < lambda_diff (Eq. 5)
    [methods/pivotrl.py, training/profile.py] states=pivots, states.keep=adv, states.lambda_diff=0.4
4. for each iteration: draw B states s from D_pivot, up to 4 (96 / 24) random ones of one trajectory together
    [methods/states.py] rollout.states=96, rollout.trajectories=24
5. draw G actions a_i at each s from pi_old
    [methods/allocate.py, rollouts/player.py] allocator=uniform, allocator.group_size=16, rollout.turns=1
6. r_i = 1 where the verifier accepts a_i, else 0 (Eq. 6); here it compares with a*, other environments have other verifiers
    [env.py, rollouts/verdicts.py, methods/pivotrl.py] reward=functional, env.verifier=demonstrated
7. A_i = (r_i - mean) / (std + eps_std) within the group; groups of equal rewards stay, with A_i = 0 (Eq. 1)
    [methods/credit.py] advantage=group, advantage.scale=true, advantage.zero_variance=keep
8. w_i = pi(a_i|s) / pi_old(a_i|s), the ratio of the whole action (Eq. 8)
    [methods/loss.py] loss=clipped, loss.ratio=action
9. J: mean over actions of [min(w_i A_i, clip(w_i, 1 - clip_low, 1 + clip_high) A_i) - kl_beta w_i times the sum of k3 over the
    action's tokens], the KL term of Eq. 7; k3 = e^x - x - 1, x = log pi_0 - log pi of a token
    [methods/loss.py, training/policy_module.py] loss.clip_low=0.2, loss.clip_high=0.2, loss.kl_beta=0.2, loss.kl_estimator=k3,
    loss.kl_importance=true, loss.aggregation=turn_mean_token_mean
10. one AdamW step on -J, with the gradient clipped
    [training/policy_module.py] update.steps=1, update.clip_norm=1.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Interval

from turnwise.methods.method import Method, key
from turnwise.methods.reward import recorded_locally
from turnwise.methods.states import Profile, Refresh
from turnwise.types import Rewards, RolloutTree, State


@dataclass(frozen=True, slots=True)
class PivotRL(Method):
    name: ClassVar[str] = "pivotrl"

    k: int = key("states.k", 8)  # K, actions sampled at each turn before training (Eq. 4); the paper gives no number
    # mixed turns whose verdicts have a mean below this are kept (Eq. 5); the paper gives no number
    lambda_diff: float = key("states.lambda_diff", 0.4)
    batch: int = key("rollout.states", 96)  # B, turns of an update; the paper: 64 (App. A.2, software)
    group_size: int = key("allocator.group_size", 16)  # G, actions at a turn; the paper: 16 (App. A.2, software)
    clip_low: float = key("loss.clip_low", 0.2)  # epsilon (Eq. 7); the paper gives no number
    clip_high: float = key("loss.clip_high", 0.2)
    kl_beta: float = key("loss.kl_beta", 0.2)  # beta (Eq. 7); the paper gives no number


@dataclass(frozen=True, slots=True)
class LocalRL(Method):
    """Naive local RL, PivotRL's baseline: the policy acts once at any expert turn and is rewarded for exactly the
    expert's action. All other default settings are those of pivotrl.

    The algorithm:

    1. D_cand: every assistant turn of every expert trajectory, (s, a*), without those that the environment excludes (Eq. 3)
        [methods/states.py, training/candidates.py] data.trajectories=500, states=expert_turns
    2. for each iteration: draw B states s from D_cand, as in pivotrl
        [methods/states.py] rollout.states=96, rollout.trajectories=24
    3. draw G actions a_i at each s from pi_old
        [methods/allocate.py, rollouts/player.py] allocator=uniform, allocator.group_size=16, rollout.turns=1
    4. r_i = 1 where a_i is the expert's action by the environment's own comparison, else 0 (PivotRL Eq. 2)
        [rollouts/verdicts.py, methods/pivotrl.py] reward=exact
    5. A_i = (r_i - mean) / (std + eps_std) within the group (PivotRL Eq. 1)
        [methods/credit.py] advantage=group, advantage.zero_variance=keep
    6. J and its ratio w_i as in pivotrl (PivotRL Eqs. 7-8)
        [methods/loss.py] loss=clipped, loss.ratio=action, loss.clip_low=0.2, loss.clip_high=0.2, loss.kl_beta=0.2,
        loss.aggregation=turn_mean_token_mean
    7. one AdamW step on -J, with the gradient clipped
        [training/policy_module.py] update.steps=1, update.clip_norm=1.0
    """

    name: ClassVar[str] = "local"

    batch: int = key("rollout.states", 96)
    group_size: int = key("allocator.group_size", 16)
    clip_low: float = key("loss.clip_low", 0.2)
    clip_high: float = key("loss.clip_high", 0.2)
    kl_beta: float = key("loss.kl_beta", 0.2)


@dataclass(frozen=True, slots=True)
class Exact:
    """Returns the reward ``strict``: 1 if the action a is exactly the demonstrated action a*(s) of the state s, else 0
    (PivotRL Eq. 2). The value was recorded in ``turn.info["strict"]`` when the action was sampled.
    """

    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        return recorded_locally(tree, "strict", "exact")


@dataclass(frozen=True, slots=True)
class Functional:
    """Returns the reward ``functional``: 1 if the action a is in M(s), the set of acceptable actions in the state s,
    else 0 (PivotRL Eq. 6). The value was recorded in ``turn.info["functional"]`` when the action was sampled.
    """

    most: ClassVar[float] = 1.0

    def __call__(self, tree: RolloutTree) -> Rewards:
        return recorded_locally(tree, "functional", "functional")


Keep = Literal["adv", "mixed", "all"]


@dataclass(frozen=True, slots=True)
class Pivots:
    """Chooses the expert turns to train on by their profiles. The profile of a turn holds the rewards of the actions
    that a policy sampled at this turn.

    A turn is mixed if these rewards differ. ``adv`` keeps mixed turns whose mean reward is below ``lambda_diff`` (Eq.
    5), ``mixed`` keeps every mixed turn, and ``all`` keeps every candidate (the paper's random turns). ``k`` is the
    number of samples per state; the paper gives neither ``k`` nor ``lambda_diff``. ``refresh``, ``refresh_window``,
    ``refresh_gap`` and ``refresh_most`` are not in the paper. They decide when actions are sampled at the turns again
    and the turns are chosen anew (:class:`Refresh`). With ``refresh=None`` the turns are chosen only once.
    """

    source: ClassVar[Literal["expert"]] = "expert"

    k: Annotated[int, Interval(ge=2, le=2**16)] = 8  # the rewards of a single sample cannot differ
    lambda_diff: Annotated[float, Interval(gt=0, le=1)] = 0.4
    keep: Keep = "adv"
    refresh: Annotated[float, Interval(gt=0, lt=1)] | None = None
    refresh_window: Annotated[int, Ge(1)] = 3
    refresh_gap: Annotated[int, Ge(1)] = 6
    refresh_most: Annotated[int, Ge(2)] = 4  # the base policy's profile is the first

    @property
    def reprofile(self) -> Refresh | None:
        if self.refresh is None:
            return None
        return Refresh(self.refresh, self.refresh_window, self.refresh_gap, self.refresh_most)

    def keeps(self, profile: Profile) -> bool:
        if self.keep == "all":
            return True
        return profile.mixed and (self.keep == "mixed" or profile.mean < self.lambda_diff)

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        missing = [state.id for state in states if state.id not in profiles]
        if missing:
            raise KeyError(
                f"{len(missing)} of {len(states)} states have no profile; the first of them is {missing[0]!r}"
            )
        return [state for state in states if self.keeps(profiles[state.id])]
