"""What benchmarks count and compare: operations, peers that read and play the same tokens."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from common import model_of, tokenizer_of
from floor import ModelSize, count, update_operations
from peers import Continuous, GenerateEngine, serve
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.rollouts.pack import pack
from turnwise.types import Credit, RolloutTree, State, Task, Turn
from updates import Ours, TrlTrie, difference
from work import Work, branching_tree, by_turn, credit, flat_tree, trl_inputs

# -- operations --------------------------------------------------------------------------------------------------------

SIZE = ModelSize(layers=3, attention=8, kept=10, linear=1000, head=70, width=4)


def grown(seed: int, group: int, turns: int) -> RolloutTree:
    """A group over an alphabet of two, so that paths agree for a while and part; some end early."""
    random_ = random.Random(seed)
    tree = RolloutTree(State("s", Task("toy", "0", "train"), ids=(5, 6, 7)))
    for _ in range(group):
        parent = -1
        for _turn in range(random_.randint(1, turns)):
            action = [random_.randint(0, 1) for _ in range(random_.randint(1, 4))]
            if parent >= 0:
                tree.turns[parent].observation_ids = [8]
            tree.turns.append(Turn(parent, action, [0.0] * len(action)))
            parent = len(tree.turns) - 1
    return tree


def brute(tree: RolloutTree) -> tuple[float, float, int]:
    """Bytes, operations and steps by enumerating prefixes."""
    paths = []
    for leaf in tree.leaves():
        ids, actions = list(tree.state.ids), []
        for i in tree.path(leaf):
            actions.append((len(ids), len(tree.turns[i].action_ids)))
            ids += tree.turns[i].action_ids + tree.turns[i].observation_ids
        paths.append((ids[:-1], actions))
    prefixes = {tuple(ids[: n + 1]) for ids, _ in paths for n in range(len(ids))}
    operations = sum(2 * SIZE.linear + 4 * SIZE.layers * SIZE.attention * len(p) for p in prefixes)
    read = steps = 0
    for turn in range(max(len(actions) for _, actions in paths)):
        active = [(ids, actions[turn]) for ids, actions in paths if turn < len(actions)]
        most = max(tokens for _, (_, tokens) in active)
        steps += most
        for step in range(most):
            contexts = {tuple(ids[: before + step]) for ids, (before, tokens) in active if step < tokens}
            read += len({c[: n + 1] for c in contexts for n in range(len(c))})
            operations += 2 * SIZE.head * len(contexts)
    numbers = (SIZE.linear + SIZE.head) * steps + SIZE.layers * SIZE.kept * (read + len(prefixes))
    return float(numbers * SIZE.width), float(operations), steps


@pytest.mark.parametrize("seed", range(8))
def test_equals_enumeration(seed: int) -> None:
    tree = grown(seed, group=5, turns=3)
    found = count([tree], SIZE)
    assert (found.bytes, found.operations, found.steps) == brute(tree)
    assert found.step_bytes == found.bytes / found.steps


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_of_a_model(tied: bool) -> None:
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, tie_word_embeddings=tied,
    )  # fmt: skip
    size = ModelSize.of(Qwen3ForCausalLM(config))
    projections = 16 * 24 + 2 * 16 * 12 + 24 * 16 + 3 * 16 * 24
    norms = 2 * 16 + 2 * 6
    assert (size.layers, size.attention, size.kept, size.head, size.width) == (2, 24, 24, 800, 4)
    assert size.linear == 2 * (projections + norms) + 16  # and the last norm


def test_operations_of_an_update() -> None:
    tree = RolloutTree(State("s", Task("toy", "0", "train"), ids=(5, 6, 7)))
    tree.turns = [Turn(-1, [1, 2], [0.0] * 2), Turn(-1, [3, 4], [0.0] * 2)]
    update = pack([tree], [Credit([1.0, -1.0], [1.0, 1.0])])
    tokens, depths, predicted = 3 + 2 * 2, 1 + 2 + 3 + 2 * (4 + 5), 4
    expected = 4 * SIZE.linear * tokens + 12 * SIZE.layers * SIZE.attention * depths + 4 * SIZE.head * predicted
    assert update.stored_tokens == tokens
    assert update_operations(update, SIZE) == expected


@pytest.mark.slow
def test_the_packed_trie_of_trl_has_our_gradient() -> None:
    pytest.importorskip("trl")
    device = torch.device("cpu")
    ours, trie = Ours("tiny", "float32", device), TrlTrie("tiny", "float32", device)
    for tree in (flat_tree(0, 16, 3, 4), branching_tree(1, 8, 2, 1, 3, 3, 3)):
        given = credit(tree, 0)
        ours.sampled(tree, given, seed=0)
        work = [tree], [given], 1 << 30
        assert difference(ours.gradients(*work), trie.gradients(*work)) < 1e-5
    trie.prepare(*work)()


# -- peers -------------------------------------------------------------------------------------------------------------

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def work() -> Work:
    found = Work.of(tokenizer_of("tiny"), tasks=2, group=2, horizon=3, max_tokens=24, max_length=4096, seed=0)
    return replace(found, sampling=Sampling(temperature=0.0, max_tokens=24))


@pytest.fixture(scope="module")
def greedy(work):
    engine = TreeEngine(work.chat.stop_ids)
    engine.load_weights(model_of("tiny", "float32", CPU), 0)
    player = work.player(engine)
    return player.play(work.states, Uniform(work.group), Never(), 0), player.tally.tokens


def test_generate_plays_what_we_play(work, greedy) -> None:
    engine = GenerateEngine(model_of("tiny", "float32", CPU), work.chat.stop_ids, pad_id=0)
    trees = work.player(engine).play(work.states, Uniform(work.group), Never(), 0)
    for theirs, ours in zip(trees, greedy[0], strict=True):
        assert [turn.action_ids for turn in theirs.turns] == [turn.action_ids for turn in ours.turns]
        assert [turn.observation_ids for turn in theirs.turns] == [turn.observation_ids for turn in ours.turns]


def test_continuous_batching_plays_what_we_play(work, greedy) -> None:
    server = Continuous(model_of("tiny", "float32", CPU), work, pad_id=0, rows=3, batch_tokens=128, block=16)
    with server.started():
        assert serve(server, work) == greedy[1]
        assert serve(server, work) == greedy[1]  # once more, from shared blocks
    assert not [thread for thread in threading.enumerate() if "_run_generation_loop" in thread.name]


def test_trl_reads_the_same_tokens(work) -> None:
    pytest.importorskip("trl")
    from peers_trl import Rollouts

    sampled = replace(work, sampling=Sampling(max_tokens=24))
    rollouts = Rollouts(model_of("tiny", "float32", CPU), sampled)
    out = rollouts.collect()
    assert len(out["prompt_ids"]) == len(work.states) * work.group
    for row in range(len(out["prompt_ids"])):
        state = work.states[row // work.group]
        assert tuple(out["prompt_ids"][row][out["prompt_mask"][row].bool()].tolist()) == state.ids
        real = out["completion_mask"][row].bool()
        expected, said = replayed(
            sampled, state, out["completion_ids"][row][real].tolist(), out["tool_mask"][row][real]
        )
        assert said == expected
    assert rollouts.play() > 0


def replayed(work, state, ids, mine):
    """What our own rules put between TRL's actions; TRL's loop must have ended where the episode did."""
    session, said, at = work.environment.reset(state.task), [], 0
    while True:
        stop = next((i for i in range(at, len(ids)) if not mine[i]), len(ids))
        action = ids[at:stop]
        said += action
        step = session.step(work.chat.decode(action))
        if step.done:
            return ids, said
        bridge = work.chat.bridge({"role": "user", "content": step.observation}, action[-1] not in work.chat.stop_ids)
        said += bridge
        at = stop + len(bridge)


# -- updates -----------------------------------------------------------------------------------------------------------


def test_trl_reads_the_same_samples() -> None:
    tree = flat_tree(0, length=5, actions=3, action=2)
    given = credit(tree, 0)
    inputs = trl_inputs(tree, given, torch.device("cpu"))
    assert inputs["prompt_ids"].tolist() == [list(tree.state.ids)] * 3
    assert inputs["completion_ids"].tolist() == [t.action_ids for t in tree.turns]
    assert inputs["advantages"].tolist() == pytest.approx(given.advantage)
    assert int(inputs["num_items_in_batch"]) == 6


def test_by_turn_shares_nothing_and_keeps_every_credit() -> None:
    tree = branching_tree(0, length=6, roots=2, branches=1, turns=4, action=3, observation=4)
    given = credit(tree, 0)
    trees, credits = by_turn(tree, given)
    assert [c.advantage for c in credits] == [[a] for a in given.advantage]
    for number, single in enumerate(trees):
        history = list(tree.state.ids)
        for t in tree.path(number)[:-1]:
            history += tree.turns[t].action_ids + tree.turns[t].observation_ids
        assert list(single.state.ids) == history
        assert single.turns[0].action_ids == tree.turns[number].action_ids
