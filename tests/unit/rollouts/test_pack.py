"""Tries and packed updates."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.configuration_files import READ
from torch import Tensor

from turnwise.config.schema import compose_config
from turnwise.config.settings import UpdateSettings
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.credit import TreeGRPO, spread
from turnwise.methods.loss import Aggregation, Clipped, Loss, LossInputs
from turnwise.methods.sft import Nll
from turnwise.models.attention import use_tree_attention
from turnwise.rollouts.pack import Trie, Update, pack
from turnwise.training.policy_module import PolicyModule
from turnwise.types import Credit, RolloutTree, State, Task, Turn

# -- tries -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12))
def test_a_trie_holds_each_path_and_its_ancestor_mask_is_exact(paths: list[list[int]]) -> None:
    trie = Trie()
    ends = [trie.add(path)[-1] for path in paths]
    layout = trie.layout()
    place = layout.place_N
    for path, end in zip(paths, ends, strict=True):
        seen, node = [], end
        while node >= 0:
            seen.append(node)
            node = trie.parents[node]
        assert [trie.tokens[n] for n in reversed(seen)] == path
        visible = [i for i in range(len(trie)) if i <= place[end] < layout.end_S[i]]
        assert visible == sorted(place[n] for n in seen)
        assert layout.position_S[place[end]] == len(path) - 1
    assert len(trie) == len({tuple(path[: i + 1]) for path in paths for i in range(len(path))})


# -- updates -----------------------------------------------------------------------------------------------------------


MakeModel = Callable[..., Any]
TASK = Task("toy", "0", "train")


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(6, 97) for _ in range(count)]


def turn(rng: random.Random, parent: int, observed: bool = True) -> Turn:
    action = tokens(rng, rng.randrange(2, 6))
    logprobs = [-rng.uniform(1, 6) for _ in action]
    return Turn(parent, action, logprobs, observation_ids=tokens(rng, rng.randrange(1, 6)) if observed else [])


def flat_group(rng: random.Random) -> list[RolloutTree]:
    """Four episodes of three turns from one root."""
    tree = RolloutTree(State("flat", TASK, tuple(tokens(rng, 17))))
    for _ in range(4):
        parent = -1
        for depth in range(3):
            tree.turns.append(turn(rng, parent, observed=depth < 2))
            parent = len(tree.turns) - 1
    return [tree]


def local_groups(rng: random.Random) -> list[RolloutTree]:
    """Three states of one spine with five single actions each, some of them alike."""
    spine = tokens(rng, 40)
    trees = []
    for place, length in enumerate((12, 25, 40)):
        tree = RolloutTree(State(f"spine#t{place}", TASK, tuple(spine[:length]), trajectory="spine", turn=place))
        tree.turns = [turn(rng, -1, observed=False) for _ in range(3)]
        tree.turns += [Turn(-1, list(t.action_ids), list(t.logprobs)) for t in tree.turns[:2]]
        trees.append(tree)
    return trees


def branching(rng: random.Random) -> list[RolloutTree]:
    """A tree that branches at its root, after its first turn and after its third."""
    tree = RolloutTree(State("branching", TASK, tuple(tokens(rng, 11))))
    for parent in (-1, 0, 0, 1, 1, 2, -1, 6):
        tree.turns.append(turn(rng, parent))
    return [tree]


def begun_anew(rng: random.Random) -> list[RolloutTree]:
    """Episodes whose agents begin another conversation: after the first turn, after the second, twice, and below a branch."""
    (tree,) = branching(rng)
    for place in (0, 4, 7):
        tree.turns[place].anew = True
    for place in (1, 2):  # these see the same conversation from its first token on
        tree.turns[place].anew = True
        tree.turns[place].observation_ids = tokens(random.Random(7), 9)
    return [tree]


SHAPES = {"flat": flat_group, "local": local_groups, "branching": branching, "anew": begun_anew}


def credit_of(trees: list[RolloutTree], rng: random.Random) -> list[Credit]:
    return [spread(tree, {leaf: rng.gauss(0, 1) for leaf in tree.leaves()}) for tree in trees]


def packed_inputs(model: Any, loss: Loss, update: Update) -> list[LossInputs]:
    """What training gives to the loss, micro-batch by micro-batch."""
    module = PolicyModule(model, loss, UpdateSettings(1e-4))
    told = zip(update.batches, module.references(update), strict=True)
    return [module.loss_inputs(batch, update, reference_U) for batch, reference_U in told]


def test_views_stand_beside_the_advantage_they_differ_from() -> None:
    rng = random.Random(3)
    trees = local_groups(rng)
    credits = credit_of(trees, rng)
    credits[0].views = {"other": [10.0 * (t + 1) for t in range(len(trees[0].turns))]}
    update = pack(trees, credits)
    told = {}  # by turn of the update, in the order of packing: state by state
    for batch in update.batches:
        assert batch.items.views.keys() == {"other"}
        moved = batch.to(torch.device("cpu")).items
        for at, credited, viewed in zip(moved.turn_K, moved.advantage_K, moved.views["other"], strict=True):
            told[int(at)] = (float(credited), float(viewed))
    own = [advantage for credit in credits for advantage in credit.advantage]
    other = [*(credits[0].views or {})["other"], *own[len(trees[0].turns) :]]
    assert [told[k][0] for k in sorted(told)] == pytest.approx(own)
    assert [told[k][1] for k in sorted(told)] == pytest.approx(other)
    assert pack(trees, credit_of(trees, rng)).batches[0].items.views == {}


def unpacked(
    model: Any, trees: list[RolloutTree], credits: list[Credit], temperature: float = 1.0
) -> dict[tuple[str, int], tuple[Tensor, Tensor]]:
    """Log-probs of every turn, policy and reference, each from a plain forward pass over its own path."""
    found = {}
    for tree in trees:
        for place, node in enumerate(tree.turns):
            history = list(tree.state.ids)
            for above in map(tree.turns.__getitem__, tree.path(node.parent)):
                history = ([] if above.anew else history + above.action_ids) + above.observation_ids
            ids = torch.tensor([history + node.action_ids])

            def logprobs(ids: Tensor = ids, start: int = len(history), node: Turn = node) -> Tensor:
                logits = model(input_ids=ids).logits[0, start - 1 : -1].float() / temperature
                return logits.log_softmax(-1).gather(1, torch.tensor(node.action_ids)[:, None])[:, 0]

            reference = torch.zeros(0)
            if hasattr(model, "disable_adapter"):
                with torch.no_grad(), model.disable_adapter():
                    reference = logprobs()
            found[tree.state.id, place] = logprobs(), reference
    return found


def unpacked_inputs(model: Any, trees: list[RolloutTree], credits: list[Credit], update: Update) -> LossInputs:
    """The same update as one flat batch that shares nothing."""
    found = unpacked(model, trees, credits)
    columns: dict[str, list[Tensor]] = {name: [] for name in ("lp", "ref", "old", "adv", "turn", "seq", "len")}
    number = 0
    for tree, credit in zip(trees, credits, strict=True):
        owner: dict[int, int] = {}
        for leaf in tree.leaves():
            for place in tree.path(leaf):
                owner.setdefault(place, leaf)
        for place, node in enumerate(tree.turns):
            logprobs, reference = found[tree.state.id, place]
            n = len(node.action_ids)
            columns["lp"].append(logprobs)
            columns["ref"].append(reference)
            columns["old"].append(torch.tensor(node.logprobs))
            columns["adv"].append(torch.full((n,), credit.advantage[place]))
            columns["turn"].append(torch.full((n,), number))
            whole = sum(len(tree.turns[t].action_ids) for t in tree.path(owner[place]))  # also what other leaves share
            columns["len"].append(torch.full((n,), float(whole)))
            columns["seq"].append(torch.full((n,), hash((tree.state.id, owner[place])) % (1 << 40)))
            number += 1
    flat = {name: torch.cat(values) for name, values in columns.items()}
    return LossInputs(
        logprobs_K=flat["lp"],
        old_logprobs_K=flat["old"],
        ref_logprobs_K=flat["ref"] if len(flat["ref"]) else None,
        advantage_K=flat["adv"],
        weight_K=torch.ones_like(flat["lp"]),
        turn_K=flat["turn"],
        sequence_K=flat["seq"],
        length_K=flat["len"],
        counts=update.counts,
    )


def gradients(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad and p.grad is not None])


@pytest.mark.parametrize("row_tokens", [2048, 40], ids=["one row", "cut rows"])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_equals_unpacked(make_model: MakeModel, kind: str, lora: bool, shape: str, row_tokens: int) -> None:
    """Log-probs, loss and gradients at a relative error of at most 1e-5 in float32."""
    rng = random.Random(3)
    model = make_model(kind, lora)
    trees = SHAPES[shape](rng)
    credits = credit_of(trees, rng)
    loss = Clipped(aggregation="seq_mean_token_mean", kl_beta=0.1 if lora else 0.0, clip_high=0.28)

    plain_model = make_model(kind, lora)  # the same weights, plain attention
    plain = unpacked_inputs(plain_model, trees, credits, pack(trees, credits))
    expected = loss(plain)
    expected.loss.backward()

    use_tree_attention(model.get_base_model() if lora else model)
    update = pack(trees, credits, row_tokens=row_tokens, batch_tokens=120)
    parts = packed_inputs(model, loss, update)
    outputs = [loss(part) for part in parts]
    total = torch.stack([output.loss for output in outputs]).sum()
    total.backward()

    assert torch.cat([part.logprobs_K for part in parts]).sum().item() == pytest.approx(
        plain.logprobs_K.sum().item(), rel=1e-5
    )
    assert total.item() == pytest.approx(expected.loss.item(), rel=1e-5, abs=1e-7)
    mine, theirs = gradients(model), gradients(plain_model)
    assert ((mine - theirs).norm() / theirs.norm()).item() < 1e-5
    assert theirs.norm() > 1e-3


@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_log_probs_are_those_at_the_sampling_temperature(make_model: MakeModel, kind: str, temperature: float) -> None:
    """The policy's and the reference's, each against a plain pass whose logits are divided by the temperature."""
    rng = random.Random(8)
    trees = branching(rng)
    credits = credit_of(trees, rng)
    model = make_model(kind, lora=True)
    found = unpacked(make_model(kind, lora=True), trees, credits, temperature)
    paths = [trees[0].path(leaf) for leaf in trees[0].leaves()]
    order = list(dict.fromkeys(place for path in paths for place in path))  # turns as they are packed
    use_tree_attention(model.get_base_model())
    module = PolicyModule(model, Clipped(kl_beta=0.1), UpdateSettings(1e-4), temperature=temperature)
    update = pack(trees, credits)
    (batch,), (reference_U,) = update.batches, module.references(update)
    inputs = module.loss_inputs(batch, update, reference_U)
    for mine_K, which in ((inputs.logprobs_K, 0), (inputs.ref_logprobs_K, 1)):
        assert mine_K is not None
        theirs_K = torch.cat([found["branching", place][which] for place in order])
        torch.testing.assert_close(mine_K.detach(), theirs_K.detach(), rtol=1e-5, atol=1e-4)
    at_one = PolicyModule(model, Clipped(), UpdateSettings(1e-4)).loss_inputs(batch, update)
    assert (inputs.logprobs_K - at_one.logprobs_K).abs().max() > 0.1  # or the comparison could not tell


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_training_gives_sampled_tokens_the_log_probs_that_the_engine_gave(
    make_model: MakeModel, temperature: float
) -> None:
    """Otherwise the first ratio of every update is not 1, and clipping starts from a distribution that nobody sampled."""
    rng = random.Random(9)
    model = make_model("qwen3", lora=True)
    engine = TreeEngine([5])
    engine.load_weights(model, 0)
    tree = RolloutTree(State("sampled", TASK, tuple(tokens(rng, 12))))
    nodes = {-1: engine.open(tree.state.ids)}
    for place, parent in enumerate((-1, -1, 0, 0, 1)):
        nodes[place] = engine.fork(nodes[parent])
        (sample,) = engine.sample([nodes[place]], Sampling(temperature=temperature, max_tokens=6), [place])
        tree.turns.append(Turn(parent, sample.ids, sample.logprobs, observation_ids=tokens(rng, 3)))
        engine.extend(nodes[place], tree.turns[-1].observation_ids)
    use_tree_attention(model.get_base_model())
    module = PolicyModule(model, Clipped(), UpdateSettings(1e-4), temperature=temperature)
    update = pack([tree], [spread(tree, {2: 1.0, 3: -1.0, 4: 0.5})])
    (batch,) = update.batches
    inputs = module.loss_inputs(batch, update)
    assert inputs.old_logprobs_K is not None and len(inputs.old_logprobs_K) >= 5
    torch.testing.assert_close(inputs.logprobs_K.detach(), inputs.old_logprobs_K, rtol=1e-5, atol=1e-4)


def test_a_tree_worked_by_hand() -> None:
    """Root 1 2; actions 3 (then observed 4) and 3 5: tokens stand depth first, 3 is shared, three items are trained."""
    tree = RolloutTree(State("s", TASK, (1, 2)))
    tree.turns = [Turn(-1, [3], [-1.0], observation_ids=[4]), Turn(0, [6], [-2.0]), Turn(-1, [3, 5], [-3.0, -4.0])]
    credit = Credit([0.5, 0.25, -1.0], [1.0, 1.0, 1.0])
    update = pack([tree], [credit])
    (batch,) = update.batches
    assert batch.ids_BS.tolist() == [[1, 2, 3, 4, 6, 5]]
    assert batch.position_BS.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert batch.end_BS.tolist() == [[6, 6, 6, 5, 5, 6]]
    assert batch.source_U.tolist() == [1, 3, 2]
    assert batch.target_U.tolist() == [3, 6, 5]
    assert batch.items.unique_K.tolist() == [0, 1, 0, 2]  # both 3s are one log-prob
    assert batch.items.advantage_K.tolist() == [0.5, 0.25, -1.0, -1.0]
    assert (update.counts.tokens, update.counts.turns, update.counts.sequences) == (4, 3, 2)
    assert (update.stored_tokens, update.path_tokens) == (6, 2 + 3 + 2 + 2)


def test_a_conversation_that_begins_anew_stands_beside_the_state() -> None:
    """Root 1 2; action 3, then the conversation 8 9 with the action 4: its positions start at 0, and it sees neither 1 nor 3."""
    tree = RolloutTree(State("s", TASK, (1, 2)))
    tree.turns = [Turn(-1, [3], [-1.0], observation_ids=[8, 9], anew=True), Turn(0, [4], [-2.0])]
    (batch,) = pack([tree], [Credit([1.0, 1.0], [1.0, 1.0])]).batches
    assert batch.ids_BS.tolist() == [[1, 2, 3, 8, 9, 4]]
    assert batch.position_BS.tolist() == [[0, 1, 2, 0, 1, 2]]
    assert batch.end_BS.tolist() == [[3, 3, 3, 6, 6, 6]]
    assert (batch.source_U.tolist(), batch.target_U.tolist()) == ([1, 4], [3, 4])
    assert tree.history(-1) == [1, 2]
    assert tree.history(0) == [8, 9]


def test_turns_without_weight_are_context_only() -> None:
    rng = random.Random(5)
    (tree,) = branching(rng)
    credit = spread(tree, {tree.leaves()[0]: 1.0})
    update = pack([tree], [credit])
    assert update.counts.turns == len(tree.path(tree.leaves()[0]))
    stopped = RolloutTree(tree.state, tree.turns, stopped=True)
    assert pack([stopped], [credit]).batches == []


def test_clip_ranges_of_the_credit_travel_with_their_tokens() -> None:
    rng = random.Random(6)
    trees = local_groups(rng)[:1]
    n = len(trees[0].turns)
    credit = Credit([1.0] * n, [1.0] * n, clip_low=[0.1 * i for i in range(n)], clip_high=[0.2 * i for i in range(n)])
    items = pack(trees, [credit]).batches[0].items
    assert items.clip_low_K is not None
    expected = [0.1 * i for i, t in enumerate(trees[0].turns) for _ in t.action_ids]
    assert items.clip_low_K.tolist() == pytest.approx(expected)


def test_demonstrations_train_each_turn_once(make_model: MakeModel) -> None:
    """A spine of three turns under nll equals the mean over its demonstrated tokens."""
    rng = random.Random(7)
    model = make_model("qwen3", False)
    tree = RolloutTree(State("demo", TASK, tuple(tokens(rng, 9)), trajectory="demo"))
    for parent in (-1, 0, 1):
        tree.turns.append(turn(rng, parent))
        tree.turns[-1].logprobs = [0.0] * len(tree.turns[-1].action_ids)
    credit = Credit([1.0] * 3, [1.0] * 3)
    update = pack([tree], [credit])
    (inputs,) = packed_inputs(model, Nll(), update)
    found = unpacked(make_model("qwen3", False), [tree], [credit])
    expected = -torch.cat([logprobs for logprobs, _ in found.values()]).mean()
    assert Nll()(inputs).loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert update.stored_tokens == 9 + sum(len(t.action_ids) for t in tree.turns) + sum(
        len(t.observation_ids) for t in tree.turns[:2]
    )


@pytest.mark.parametrize("row_tokens", [2048, 12])
def test_a_credit_may_name_the_samples(row_tokens: int) -> None:
    """Turn 0 is shared by 1 and 2. By default it counts with its first leaf; named, it is a sample of its own."""
    tree = RolloutTree(State("s", TASK, (1, 2)))
    tree.turns = [Turn(-1, [3], [-1.0], observation_ids=[4]), Turn(0, [5, 6], [-2.0] * 2), Turn(0, [7], [-3.0])]
    credit = Credit([1.0] * 3, [1.0] * 3)

    def samples(credit: Credit) -> list[set[int]]:
        update = pack([tree], [credit], row_tokens=row_tokens)
        items = [(t, s) for b in update.batches for t, s in zip(b.items.turn_K.tolist(), b.items.sequence_K.tolist())]
        assert update.counts.sequences == len({s for _, s in items})
        return [{t for t, s in items if s == sample} for sample in sorted({s for _, s in items})]

    assert samples(credit) == [{0, 1}, {2}]
    credit.sample = [0, 1, 2]
    assert samples(credit) == [{0}, {1}, {2}]


# -- shares ------------------------------------------------------------------------------------------------------------

CONF = Path(__file__).parents[3] / "conf"


def tree_of(name: str, actions: list[list[int]]) -> RolloutTree:
    """One turn a branch; the sampler's log-prob of each token is -1."""
    turns = [Turn(-1, action, [-1.0] * len(action)) for action in actions]
    return RolloutTree(State(name, Task("toy", name, "train"), (1, 2)), turns)


def level(tree: RolloutTree, advantage: float) -> Credit:
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
    update = pack([few, many], [level(few, 3.0), level(many, -1.0)], row_tokens=tokens, batch_tokens=tokens)
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
    credits = [branches, level(path, 1.0), Credit([1.0], [0.0]), level(stopped, 1.0)]
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
