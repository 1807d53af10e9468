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
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn

import turnwise
from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.models.attention import NAME, backbone, unwrapped
from turnwise.models.gated_delta_layers import KIND
from turnwise.models.packed_logprobs import plan_of, score
from turnwise.rollouts.pack import Packed, pack
from turnwise.types import Credit, RolloutTree, State, Task, Turn

WINDOW = 2  # length of attention windows in tokens; windows then end inside turns, after turns and in the prefix
TRUNK, CHUNK = 16, 64  # tokens of the shared prefix: TRUNK usually, CHUNK for models with a gated delta rule
WRITTEN, SEEN, LAST = 3, 7, 2  # numbers of tokens of a first turn, of the observation after it, and of a second turn
LIMIT, REDUCED = 1e-3, 5e-2  # greatest allowed differences in nats: in float32 or float64, and in other data types
PARENTS = (-1, -1, 0, 0, 1)  # for each of the five turns the index of its parent; -1 is the root


_NUMBERS = ("idx", "index", "layer_id", "layer_number")  # suffixes of the attributes that hold a layer's own number


@dataclass(frozen=True, slots=True)
class Difference:
    """The part that gives other log-probs (``update`` or ``engine``), and the reason."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


def probe(model: Any) -> Difference | None:
    """Compares log-probs of a causal LM as the docstring of this module says. Returns a difference, or None."""
    return _measured(model, _difference)


def probe_backbone(model: Any) -> Difference | None:
    """Compares the last hidden states of a headless model on a packed tree and on the tree's paths, relative to the
    largest hidden state, and returns a difference that was found, or None.
    """
    return _measured(model, _hidden_difference)


def _measured(model: Any, measure: Callable[[Any], Difference | None]) -> Difference | None:
    try:
        with fewer_layers(model), torch.no_grad():
            difference = measure(model)
            if difference is None or _limit(model) == LIMIT:
                return difference
            wide = {
                id(p): nn.Parameter(p.float(), requires_grad=False) for p in model.parameters() if p.is_floating_point()
            }
            return measure(copy.deepcopy(model, wide).float())
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the model's code may raise anything
        why = " ".join(str(error).split())[:160]
        return Difference("update", f"the log-probs cannot be computed ({type(error).__name__}: {why})")


@contextmanager
def fewer_layers(model: Any) -> Iterator[None]:
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
            kinds = [_kind(layer) for layer in layers]
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


def _kind(layer: nn.Module) -> list[Any]:
    def plain(name: str, value: Any) -> bool:
        kept = value is None or isinstance(value, bool | int | float | str)
        return kept and not name.startswith("_") and not name.endswith(_NUMBERS)

    return [
        (name, type(module), sorted((key, repr(value)) for key, value in vars(module).items() if plain(key, value)))
        for name, module in layer.named_modules()
    ]


Tokens = tuple[Sequence[int], Sequence[Sequence[int]]]
"""The token ids of the probe tree's shared prefix, and of its two observations."""


# -- the tree ----------------------------------------------------------------------------------------------------------


class Example:
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

    def to(self, device: torch.device) -> Example:
        self.packed = self.packed.to(device)
        self.paths, self.target_K = self.paths.to(device), self.target_K.to(device)
        return self


def _tokens(config: Any) -> Tokens:
    """Returns the token ids (without special tokens) of the shared prefix and of the two observations."""
    special = {v for k, v in config.to_dict().items() if k.endswith("_token_id") and isinstance(v, int)}
    vocabulary = min(config.vocab_size, 4096)
    free = [token for token in range(vocabulary // 8, vocabulary) if token not in special]
    trunk = CHUNK if KIND in (getattr(config, "layer_types", None) or ()) else TRUNK
    ids = [free[7 * i % len(free)] for i in range(trunk + 2 * SEEN)]
    return ids[:trunk], [ids[trunk:-SEEN], ids[-SEEN:]]


def sampled(engine: TreeEngine, tokens: Tokens, written: int = WRITTEN, last: int = LAST) -> list[Sample]:
    """Samples the five turns of the probe's tree with an engine."""
    trunk, seen = tokens
    a = engine.open(trunk)
    b = engine.fork(a)
    drawn = engine.sample([a, b], Sampling(max_tokens=written), [1, 2])
    for node, ids in zip((a, b), seen, strict=True):
        engine.extend(node, ids)
    return drawn + engine.sample([a, engine.fork(a), b], Sampling(max_tokens=last), [3, 4, 5])


def _given(tokens: Tokens) -> list[list[int]]:
    trunk = tokens[0]
    return [[trunk[(7 * i + j) % len(trunk)] for j in range(WRITTEN if i < 2 else LAST)] for i in range(len(PARENTS))]


# -- measurements ------------------------------------------------------------------------------------------------------


def _difference(model: Any) -> Difference | None:
    config = unwrapped(model).config.get_text_config()
    device, tokens = next(model.parameters()).device, _tokens(config)
    engine = TreeEngine(end_ids=(), copy=False)
    engine.load_weights(model, 0)
    drawn = sampled(engine, tokens)
    example = Example(*tokens, [sample.ids for sample in drawn]).to(device)
    own_K = _own(model, example)
    packed_K = score(model, example.packed)[0][example.packed.items.unique_K]
    limit = _limit(model)
    if (by := _largest(packed_K, own_K)) > limit:
        return Difference("update", f"log-probs of a packed tree differ by {by:.2g} nats from a plain forward pass")
    engine_K = torch.tensor([x for t in example.order for x in drawn[t].logprobs], device=device)
    if (by := _largest(engine_K, own_K)) > limit:
        return Difference("engine", f"log-probs of sampled tokens differ by {by:.2g} nats from a plain forward pass")
    return None


def _own(model: Any, example: Example) -> Tensor:
    """Returns the log-probs (K,) of the tree's action tokens, from the model's own forward pass over each path."""
    logits = _plainly(model, example.paths).logits
    rows, places = torch.tensor(example.row), torch.tensor(example.place)
    return logits[rows, places].float().log_softmax(-1).gather(-1, example.target_K[:, None])[:, 0]


def _plainly(model: Any, paths: Tensor, **more: Any) -> Any:
    """Runs the model's own forward pass over token ids (paths, tokens), with the model's reference attention."""
    with own_attention(model):
        return model(input_ids=paths, use_cache=False, **more)


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """Makes the model use its own reference attention (``eager``) within the ``with`` block."""
    base = unwrapped(model)
    base.set_attn_implementation("eager")
    try:
        yield
    finally:
        base.set_attn_implementation(NAME)


def _hidden_difference(body: Any) -> Difference | None:
    tokens = _tokens(body.config.get_text_config())
    example = Example(*tokens, _given(tokens)).to(next(body.parameters()).device)
    wanted = _plainly(body, example.paths).last_hidden_state[torch.tensor(example.row), torch.tensor(example.place)]
    packed = example.packed
    out = body(
        input_ids=packed.ids_BS, position_ids=packed.position_BS, use_cache=False, plan=plan_of(packed.end_BS)
    ).last_hidden_state
    by = _largest(out.flatten(0, 1)[packed.source_U[packed.items.unique_K]], wanted) / max(
        float(wanted.abs().max()), 1e-6
    )
    if by <= _limit(body):
        return None
    return Difference("update", f"hidden states of a packed tree differ by {by:.2g} of the largest from a plain pass")


def _largest(a: Tensor, b: Tensor) -> float:
    by = float((a.float() - b.float()).abs().max())
    return by if by == by else float("inf")


def _limit(model: Any) -> float:
    return LIMIT if next(model.parameters()).dtype in (torch.float32, torch.float64) else REDUCED


# -- refusing a model --------------------------------------------------------------------------------------------------


_CODE = ("models", "engines", "rollouts")  # packages whose code can change the result of the probe


def check_exact(model: Any, named: str, cache: Path, measure: Callable[[Any], Difference | None] = probe) -> None:
    """Checks that packed trees give the log-probs of a causal LM's own forward pass, or with ``probe_backbone`` the
    last hidden states of a headless transformer's. The check is skipped if the cache says that a model with equal
    :func:`_key` has passed the check.

    Args:
        named: the configuration key and value that chose the model, for the message.
        cache: the folder of files that runs share.

    Raises:
        InputError: the log-probs or hidden states differ.
    """
    kept = cache / "probe" / f"{_key(model, measure.__name__)}.json"
    if kept.is_file():
        return
    if (found := measure(model)) is not None:
        raise InputError(refusal(model, named, found))
    with atomic_write(kept) as part:
        part.write_text(json.dumps({"model": named, "exact": True}) + "\n", encoding="utf-8")


def refusal(model: Any, named: str, found: Difference) -> str:
    """Returns an error message of one line: the architecture, the part that differs, and the remedy."""
    kind = unwrapped(model).config.model_type
    return (
        f"{named}: the architecture {kind} ({type(unwrapped(model)).__name__}) is not reproduced exactly by the "
        f"packed forward pass of this code, so a run would train on wrong log-probs ({found}). Choose a model of a "
        "family that docs/models.md lists as exact"
    )


def _key(model: Any, measured: str) -> str:
    base = unwrapped(model)
    weight = next(base.parameters())
    about = {
        "measured": measured,
        "class": type(base).__name__,
        "config": base.config.to_diff_dict(),
        "adapters": base is not model,
        "weights": [str(weight.dtype), weight.device.type],
        "versions": [library.__version__ for library in (torch, transformers, peft)],
        "layers": base.config.get_text_config().num_hidden_layers,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for folder in _CODE:
        for file in sorted((Path(turnwise.__file__).parent / folder).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
