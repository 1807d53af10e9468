"""Checks that the engine, the packed forward pass and a model's own forward pass give the same log-probs, and refuses
models for which they do not.

The engine samples a small tree: a shared prefix (the *trunk*), two first turns, each followed by an observation, and
three second turns. The tree is packed as for an update and scored. Each path from the root to a leaf also goes through
the model's own forward pass, with the model's own head and its reference attention (``eager``). The log-probs of the
sampled tokens at temperature 1 must agree.

The probe takes little more time than loading the model: attention windows have ``WINDOW`` tokens, and only as many of
the lowest layers are computed as include every kind of layer. The model stays in the mode in which it was loaded, so
random noise (dropout) is found. If the weights are less precise than float32, a difference above the limit is measured
again on a float32 copy of these layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.errors import InputError
from turnwise.models.attention import NAME, backbone, unwrapped
from turnwise.models.logprobs import plan_of, score
from turnwise.models.recurrence import KIND
from turnwise.rollouts.pack import Packed, pack
from turnwise.types import Credit, RolloutTree, State, Task, Turn

WINDOW = 2  # length of attention windows in tokens; windows then end inside turns, after turns and in the prefix
TRUNK, CHUNK = 16, 64  # tokens of the shared prefix: TRUNK usually, CHUNK for models with a gated delta rule
WRITTEN, SEEN, LAST = 3, 7, 2  # numbers of tokens of a first turn, of the observation after it, and of a second turn
LIMIT, REDUCED = 1e-3, 5e-2  # greatest allowed differences in nats: in float32 or float64, and in other data types
PARENTS = (-1, -1, 0, 0, 1)  # for each of the five turns the index of its parent; -1 is the root


_NUMBERS = ("idx", "index", "layer_id", "layer_number")  # suffixes of the attributes that hold a layer's own number


def probe(model: Any) -> str | None:
    """Compares log-probs of a causal LM as the docstring of this module says.

    Returns None, or the part that gives other log-probs (``update`` or ``engine``), a colon and the reason.
    """
    return _probed(model, _probe_difference)


def probe_backbone(model: Any) -> str | None:
    """Compares the last hidden states of a headless model on a packed tree and on the tree's paths, relative to the
    largest hidden state. The result is as that of :func:`probe`.
    """
    return _probed(model, _probe_hidden_difference)


def _probed(model: Any, measure: Callable[[Any], str | None]) -> str | None:
    try:
        with probed_layers(model), torch.no_grad():
            difference = measure(model)
            if difference is None or _probe_limit(model) == LIMIT:
                return difference
            wide = {
                id(p): nn.Parameter(p.float(), requires_grad=False) for p in model.parameters() if p.is_floating_point()
            }
            return measure(copy.deepcopy(model, wide).float())
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the model's code may raise anything
        why = " ".join(str(error).split())[:160]
        return f"update: the log-probs cannot be computed ({type(error).__name__}: {why})"


@contextmanager
def probed_layers(model: Any) -> Iterator[None]:
    """Keeps only the lowest layers that include every kind of layer, at least two, and shrinks attention windows.

    A model whose list of layers is not recognised keeps all layers. No weight is copied.
    """
    body: Any = backbone(model)
    layers, before = getattr(body, "layers", None), []

    def change(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        if isinstance(layers, nn.ModuleList) and len(layers) == getattr(body.config, "num_hidden_layers", None):
            kinds = [_kind_of_probed_layer(layer) for layer in layers]
            count = max(min(2, len(kinds)), *(kinds.index(kind) + 1 for kind in kinds))
            change(body, "layers", layers[:count])
            change(body.config, "num_hidden_layers", count)
        owners = {id(owner): owner for m in body.modules() for owner in (m, getattr(m, "config", None))}
        for owner in owners.values():
            size = getattr(owner, "sliding_window", None)
            if isinstance(size, int) and not isinstance(size, bool) and size > WINDOW:
                change(owner, "sliding_window", WINDOW)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def _kind_of_probed_layer(layer: nn.Module) -> list[Any]:
    def plain(name: str, value: Any) -> bool:
        simple = value is None or isinstance(value, bool | int | float | str)
        return simple and not name.startswith("_") and not name.endswith(_NUMBERS)

    return [
        (name, type(module), sorted((key, repr(value)) for key, value in vars(module).items() if plain(key, value)))
        for name, module in layer.named_modules()
    ]


Tokens = tuple[Sequence[int], Sequence[Sequence[int]]]
"""The token ids of the probe tree's shared prefix, and of its two observations."""


# -- the tree ----------------------------------------------------------------------------------------------------------


class ProbeTree:
    """The probe's rollout tree, in packed form and as separate paths from the root to each leaf.

    ``trunk`` holds the token ids of the root state, ``seen`` of the two observations, and ``written`` of the five
    turns' actions.
    """

    def __init__(self, trunk: Sequence[int], seen: Sequence[Sequence[int]], written: Sequence[Sequence[int]]) -> None:
        turns = [
            Turn(parent, list(ids), [0.0] * len(ids), observation_ids=list(seen[i]) if i < 2 else [])
            for i, (parent, ids) in enumerate(zip(PARENTS, written, strict=True))
        ]
        self.tree = RolloutTree(State("probe", Task("probe", "probe", "train"), tuple(trunk)), turns)
        credit = Credit(advantage=[1.0] * len(turns), weight=[1.0] * len(turns))
        self.packed: Packed = pack([self.tree], [credit], row_tokens=1 << 20).batches[0]
        self.order: list[int] = []  # the turns, in the order of the packed items
        self.row: list[int] = []  # for each item (trained token), the number of the path that counts it
        self.place: list[int] = []  # for each item, the index on the path ``row`` of the token before the item's token
        paths = []
        for number, leaf in enumerate(self.tree.leaves()):
            ids = list(trunk)
            for t in self.tree.path(leaf):
                if t not in self.order:
                    self.order.append(t)
                    self.row += [number] * len(turns[t].action_ids)
                    self.place += range(len(ids) - 1, len(ids) - 1 + len(turns[t].action_ids))
                ids += turns[t].action_ids + turns[t].observation_ids
            paths.append(ids)
        self.paths = torch.tensor(paths)  # (leaves, tokens), all of the same length
        self.target_K = self.packed.target_U[self.packed.items.unique_K]

    def to(self, device: torch.device) -> ProbeTree:
        self.packed = self.packed.to(device)
        self.paths, self.target_K = self.paths.to(device), self.target_K.to(device)
        return self


def _probe_tokens(config: Any) -> Tokens:
    """Returns the token ids (without special tokens) of the shared prefix and of the two observations."""
    special = {v for k, v in config.to_dict().items() if k.endswith("_token_id") and isinstance(v, int)}
    vocabulary = min(config.vocab_size, 4096)
    free = [token for token in range(vocabulary // 8, vocabulary) if token not in special]
    trunk = CHUNK if KIND in (getattr(config, "layer_types", None) or ()) else TRUNK
    ids = [free[7 * i % len(free)] for i in range(trunk + 2 * SEEN)]
    return ids[:trunk], [ids[trunk:-SEEN], ids[-SEEN:]]


def sampled_probe_turns(engine: TreeEngine, tokens: Tokens, written: int = WRITTEN, last: int = LAST) -> list[Sample]:
    trunk, seen = tokens
    a = engine.open(trunk)
    b = engine.fork(a)
    drawn = engine.sample([a, b], Sampling(max_tokens=written), [1, 2])
    for node, ids in zip((a, b), seen, strict=True):
        engine.extend(node, ids)
    return drawn + engine.sample([a, engine.fork(a), b], Sampling(max_tokens=last), [3, 4, 5])


# -- measurements ------------------------------------------------------------------------------------------------------


def _probe_difference(model: Any) -> str | None:
    config = unwrapped(model).config.get_text_config()
    device, tokens = next(model.parameters()).device, _probe_tokens(config)
    engine = TreeEngine(end_ids=(), copy=False)
    engine.load_weights(model, 0)
    drawn = sampled_probe_turns(engine, tokens)
    example = ProbeTree(*tokens, [sample.ids for sample in drawn]).to(device)
    logits = _on_paths(model, example).logits[torch.tensor(example.row), torch.tensor(example.place)]
    own_K = logits.float().log_softmax(-1).gather(-1, example.target_K[:, None])[:, 0]
    packed_K = score(model, example.packed)[0][example.packed.items.unique_K]
    engine_K = torch.tensor([x for t in example.order for x in drawn[t].logprobs], device=device)
    for found_K, what in ((packed_K, "update: log-probs of a packed tree"), (engine_K, "engine: sampled log-probs")):
        if (by := _largest(found_K, own_K)) > _probe_limit(model):
            return f"{what} differ by {by:.2g} nats from those of a plain forward pass"
    return None


def _probe_hidden_difference(body: Any) -> str | None:
    tokens = _probe_tokens(body.config.get_text_config())
    trunk = tokens[0]
    lengths = [WRITTEN, WRITTEN, LAST, LAST, LAST]
    written = [[trunk[(7 * i + j) % len(trunk)] for j in range(length)] for i, length in enumerate(lengths)]
    example = ProbeTree(*tokens, written).to(next(body.parameters()).device)
    own = _on_paths(body, example).last_hidden_state[torch.tensor(example.row), torch.tensor(example.place)]
    packed = example.packed
    out = body(input_ids=packed.ids_BS, position_ids=packed.position_BS, use_cache=False, plan=plan_of(packed.end_BS))
    packed_hidden = out.last_hidden_state.flatten(0, 1)[packed.source_U[packed.items.unique_K]]
    if (by := _largest(packed_hidden, own) / max(float(own.abs().max()), 1e-6)) <= _probe_limit(body):
        return None
    return f"update: hidden states of a packed tree differ by {by:.2g} of the largest from those of a plain pass"


def _on_paths(model: Any, example: ProbeTree) -> Any:
    """Runs the model's own forward pass over the paths, with the model's reference attention."""
    with probe_own_attention(model):
        return model(input_ids=example.paths, use_cache=False)


@contextmanager
def probe_own_attention(model: Any) -> Iterator[None]:
    """Makes the model use its own reference attention (``eager``) within the ``with`` block."""
    base = unwrapped(model)
    base.set_attn_implementation("eager")
    try:
        yield
    finally:
        base.set_attn_implementation(NAME)


def _largest(a: Tensor, b: Tensor) -> float:
    by = float((a.float() - b.float()).abs().max())
    return by if by == by else float("inf")


def _probe_limit(model: Any) -> float:
    return LIMIT if next(model.parameters()).dtype in (torch.float32, torch.float64) else REDUCED


# -- refusing a model --------------------------------------------------------------------------------------------------


def check_exact(model: Any, named: str, measure: Callable[[Any], str | None] = probe) -> None:
    """Checks that packed trees give the log-probs of a causal LM's own forward pass, or with ``probe_backbone`` the
    last hidden states of a headless transformer's. ``named`` is the key and value that chose the model.

    Raises:
        InputError: the log-probs or hidden states differ.
    """
    if (difference := measure(model)) is not None:
        raise InputError(refusal(model, named, difference))


def refusal(model: Any, named: str, difference: str) -> str:
    kind = unwrapped(model).config.model_type
    return (
        f"{named}: the architecture {kind} ({type(unwrapped(model)).__name__}) is not reproduced exactly by the "
        f"packed forward pass of this code, so a run would train on wrong log-probs ({difference}). Choose a model of a "
        "family that docs/models.md lists as exact"
    )
