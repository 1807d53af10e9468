"""Supervised fine-tuning: the policy imitates the demonstrations, by the mean negative log-likelihood of the
tokens of demonstrated assistant turns. The tokens of a trajectory are computed once for all of its turns.

The algorithm. A step names the files that do it, below src/turnwise, and the parts and keys that decide it; the class of
a part is named in conf/GROUP/OPTION.yaml.

1. take every expert trajectory; its turns, without those that the environment excludes, are (s_t, a*_t) (PivotRL Eq. 3).
    70 % of the trajectories are the clumsy expert's; the mistakes that it makes and corrects are trained on too
    [methods/states.py, training/candidates.py] data.trajectories=500, data.good=0.3, states=expert_turns, reward=none
2. for each iteration: draw B trajectories, or parts if the chat template shortens the history of later turns
    [methods/states.py] rollout.states=24
3. read each trajectory once, as a tree with one path; sample nothing
    [methods/sft.py, training/iterations.py] allocator=none, advantage=none
4. J: mean over all demonstrated tokens of log pi of the token after all before it
    [methods/sft.py] loss=nll, loss.aggregation=token_mean
5. one AdamW step on -J, with the gradient clipped
    [training/policy_module.py] update.steps=1, update.clip_norm=1.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from turnwise.methods.loss import LossInputs, LossOutput, Mean, token_scale
from turnwise.methods.method import Method, key
from turnwise.types import Credit, RolloutTree, State, Turn


@dataclass(frozen=True, slots=True)
class SFT(Method):
    name: ClassVar[str] = "sft"

    batch: int = key("rollout.states", 24)  # B, paths of an update
    aggregation: str = key("loss.aggregation", "token_mean")


@dataclass(frozen=True, slots=True)
class Nll:
    """Computes the mean negative log-likelihood of the demonstrated tokens. (PivotRL, section 2, sums over the tokens of a
    turn and averages over turns; ``token_mean`` is that divided by the mean length of a turn of the update.)

    With ``token_mean`` the loss is the mean over all demonstrated tokens of the update, and every token has the same
    weight. With ``turn_mean_token_mean`` it is the mean over the tokens of each turn and then over turns, and every
    turn has the same weight. The metrics are ``nll`` (in nats per token) and, if the entropy was computed, ``entropy``.
    Both are unweighted means over tokens.
    """

    aggregation: Literal["token_mean", "turn_mean_token_mean"] = "token_mean"

    needs_reference: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = False

    def __call__(self, batch: LossInputs) -> LossOutput:
        batch = batch.trained()
        loss = -(batch.logprobs_K * token_scale(batch, self.aggregation)).sum()
        tokens = float(batch.logprobs_K.numel())
        metrics = {"nll": Mean(-float(batch.logprobs_K.detach().sum()), tokens)}
        if batch.entropy_K is not None:
            metrics["entropy"] = Mean(float(batch.entropy_K.detach().sum()), tokens)
        return LossOutput(loss, metrics)


class Imitation:
    """The advantage rule for demonstrations: every demonstrated turn has weight 1 and advantage 1."""

    def __call__(self, tree: RolloutTree, rewards: object) -> Credit:
        return Credit([1.0] * len(tree.turns), [1.0] * len(tree.turns))


def demonstration(turns: Sequence[State]) -> RolloutTree:
    """Returns a tree whose only path consists of the demonstrated turns at ``turns``, a list of
    :func:`demonstrated_paths`. The tokens between two demonstrated turns are the observation of the earlier turn.

    Raises:
        ValueError: the history of a state does not begin with the history and demonstrated turn of the state before.
    """
    root = turns[0]
    tree = RolloutTree(root)
    seen = list(root.ids)
    for i, state in enumerate(turns):
        assert state.expert is not None
        action = list(state.expert_ids)
        following = list(turns[i + 1].ids) if i + 1 < len(turns) else []
        observation = following[len(seen) + len(action) :]
        tree.turns.append(Turn(i - 1, action, [0.0] * len(action), state.expert, observation))
        seen += action + observation
        if following and seen != following:
            raise ValueError(f"state {turns[i + 1].id!r} does not continue {state.id!r}")
    return tree


def demonstrated_paths(states: Sequence[State]) -> Mapping[str, list[State]]:
    """Groups the states of demonstrations into paths. Returns id of the first state of a path -> path.

    A path is a list of consecutive states of one trajectory. The history of each further state begins with the history
    and the demonstrated turn of the state before.
    """
    paths: dict[str, list[State]] = {}
    last: State | None = None
    head = ""
    for state in states:
        continues = (
            last is not None
            and state.trajectory == last.trajectory
            and state.ids[: len(last.ids) + len(last.expert_ids)] == last.ids + last.expert_ids
        )
        if not continues:
            head = state.id
        paths.setdefault(head, []).append(state)
        last = state
    return paths
