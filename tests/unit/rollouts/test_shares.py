"""What a tree's branches weigh beside those of another tree (TRACE, arXiv:2606.11119, Eqs. 43 and 47), worked by hand."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import torch
from tests.configuration_files import READ

from turnwise.algo.advantages.trees import TreeGRPO
from turnwise.algo.losses.clipped import Clipped
from turnwise.algo.losses.loss import Aggregation, Loss, LossInputs
from turnwise.config.schema import compose_config
from turnwise.rollouts.pack import Update, pack
from turnwise.types import Credit, RolloutTree, State, Task, Turn

CONF = Path(__file__).parents[3] / "conf"


def tree_of(name: str, actions: list[list[int]]) -> RolloutTree:
    """One turn a branch; the sampler's log-prob of each token is -1."""
    turns = [Turn(-1, action, [-1.0] * len(action)) for action in actions]
    return RolloutTree(State(name, Task("toy", name, "train"), (1, 2)), turns)


def credit_of(tree: RolloutTree, advantage: float) -> Credit:
    return Credit([advantage] * len(tree.turns), [1.0] * len(tree.turns))


def loss_and_gradients(loss: Loss, update: Update) -> tuple[float, dict[int, list[float]]]:
    """The loss of an update whose policy is the sampler, and the gradient at each token, by turn of the update."""
    total, found = 0.0, {}
    for batch in update.batches:
        items = batch.items
        logprobs_K = items.old_logprob_K.clone().requires_grad_()
        value = loss(
            LossInputs(
                logprobs_K=logprobs_K, old_logprobs_K=items.old_logprob_K, advantage_K=items.advantage_K,
                weight_K=items.weight_K, turn_K=items.turn_K, sequence_K=items.sequence_K, share_K=items.share_K,
                length_K=items.length_K, counts=update.counts,
            )
        ).loss  # fmt: skip
        (gradient_K,) = torch.autograd.grad(value, logprobs_K)
        for turn, gradient in zip(items.turn_K.tolist(), gradient_K.tolist(), strict=True):
            found.setdefault(turn, []).append(gradient)
        total += value.item()
    return total, found


@pytest.mark.parametrize("tokens", [2048, 8], ids=["one micro-batch", "a tree over several"])
def test_trees_of_two_and_of_ten_branches_weigh_the_same_in_trace(tokens: int) -> None:
    few = tree_of("few", [[10, 11], [12]])
    many = tree_of("many", [[20 + i] for i in range(9)] + [[30, 31, 32, 33]])
    update = pack([few, many], [credit_of(few, 3.0), credit_of(many, -1.0)], row_tokens=tokens, batch_tokens=tokens)
    assert (len(update.batches) > 2) == (tokens == 8)
    loss: Loss = hydra.utils.instantiate(compose_config(["method=trace"], CONF, read=READ).loss)
    value, gradients = loss_and_gradients(loss, update)
    assert value == pytest.approx((-3 + 1) / 2)
    # 1/2 a tree, 1/2 or 1/10 a branch, then its tokens
    assert gradients[0] == pytest.approx([-3 / 2 / 2 / 2] * 2)
    assert gradients[1] == pytest.approx([-3 / 2 / 2])
    assert gradients[2] == pytest.approx([1 / 2 / 10])
    assert gradients[11] == pytest.approx([1 / 2 / 10 / 4] * 4)
    # over all branches of the update the two trees weigh 1/6 and 5/6
    assert loss_and_gradients(Clipped(), update)[0] == pytest.approx(-3 / 6 + 1 * 5 / 6)


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "tree_mean_seq_mean_token_mean"])
def test_a_continuation_weighs_by_the_length_of_its_whole_path(aggregation: Aggregation) -> None:
    """Eq. 49: each token of path i has A_i / |y_i|, also if the path shares its first turn with another one."""
    tree = RolloutTree(State("a", Task("toy", "a", "train"), (1, 2)))
    actions = [(-1, [10, 11, 12]), (-1, [20, 21, 22, 23, 24]), (0, [30, 31, 32, 33]), (0, [40, 41])]
    tree.turns = [Turn(parent, action, [-1.0] * len(action)) for parent, action in actions]
    loss = Clipped(aggregation=aggregation)
    # the leaves 1, 2 and 3 have 5, 3 + 4 and 3 + 2 tokens; one of three won, and one of the two below turn 0
    credit = TreeGRPO(eps=0.0)(tree, {"total": [0.0, 1.0, 0.0]})
    lost, won = -(0.5**0.5), 2**0.5
    update = pack([tree], [credit])
    found = loss_and_gradients(loss, update)[1].values()
    assert sorted(gradients[0] for gradients in found) == pytest.approx(
        sorted([-lost / 5 / 3, -(won + 1) / 7 / 3, -(lost - 1) / 5 / 3, -(won + lost) / 7 / 3])
    )
    # a copy of the shared turn in each path gives the turns that are not shared the same gradients
    flat = tree_of("a", [[20, 21, 22, 23, 24], [10, 11, 12, 30, 31, 32, 33], [10, 11, 12, 40, 41]])
    copies = Credit([lost, won + 1, lost - 1], [1.0] * 3)
    apart = loss_and_gradients(loss, pack([flat], [copies]))[1].values()
    ends = [gradients[-1] for gradients in apart]
    assert [one for one in ends if not any(one == pytest.approx(gradients[-1]) for gradients in found)] == []


def test_what_is_not_trained_on_has_no_share() -> None:
    """A branch without weight, a tree without any and a stopped one; turns that name one sample share its place."""
    shared = RolloutTree(State("a", Task("toy", "a", "train"), (1, 2)))
    shared.turns = [Turn(parent, [token], [-1.0]) for parent, token in ((-1, 3), (0, 5), (0, 6), (-1, 7))]
    branches = Credit([1.0] * 4, [1.0, 1.0, 1.0, 0.0], sample=[0, 1, 2, 3])
    path = tree_of("b", [[8]])
    silent, stopped = tree_of("c", [[9]]), tree_of("d", [[9]])
    stopped.stopped = True
    credits = [branches, credit_of(path, 1.0), Credit([1.0], [0.0]), credit_of(stopped, 1.0)]
    update = pack([shared, path, silent, stopped], credits)
    shares = {
        turn: share
        for batch in update.batches
        for turn, share in zip(batch.items.turn_K.tolist(), batch.items.share_K.tolist(), strict=True)
    }
    assert shares == pytest.approx({0: 1 / 6, 1: 1 / 6, 2: 1 / 6, 3: 1 / 2})
    branches.sample = None  # turns 0 and 1 are then one sample, 2 another
    (batch,) = pack([shared, path], credits[:2]).batches
    assert batch.items.share_K.tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 4, 1 / 2])
