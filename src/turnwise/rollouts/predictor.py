"""Values of histories: the predictor of success, a critic trained online, and the policy's probability of the true answer.

The predictor (TRACE Eqs. 17-19) learns from finished trees, and measures how good its predictions are. The probability of
a task's true answer is for IGPO (arXiv:2510.14967).
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from lightning import Callback, LightningModule
from scipy.stats import spearmanr
from torch import Tensor, nn

from turnwise.data.chat_tokens import ChatTokens
from turnwise.env import Environment, environment_of
from turnwise.errors import InputError
from turnwise.methods.reward import Reward
from turnwise.models.fast_llama import Forward, forward_of_body, own_forward
from turnwise.models.logprobs import plan_of, score
from turnwise.models.policy import load_backbone
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.pack import Trie, pack
from turnwise.rollouts.player import seed_of
from turnwise.types import Credit, Rewards, RolloutTree, Turn

# -- packed histories --------------------------------------------------------------------------------------------------


Place = tuple[int, int]
"""Names a history: the index of its tree in the given list, and the turn after which it ends (-1: the root state)."""


@dataclass(slots=True)
class Histories:
    """The inputs of one forward pass: one row (B = 1) of S packed tokens (as ``models.logprobs.PackedTokens``) that
    contain Q histories.
    """

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor
    last_Q: Tensor  # index of each history's last token in the row
    places: list[Place]  # the names of the Q histories


class _Spine(NamedTuple):
    """The tokens of one conversation of a path, and the names of histories in it with the indices of their last tokens."""

    ids: list[int]
    lasts: list[tuple[Place, int]]


def read_spines(trees: Sequence[RolloutTree], wanted: Sequence[Collection[int]], batch_tokens: int) -> list[Histories]:
    """Packs every requested history once, as a part of the first path of its tree that contains it.

    Paths with a common prefix share its tokens, even if they belong to different trees, because states of one
    environment begin with the same rules and tools.

    Args:
        wanted: for each tree, the turns after which a requested history ends; -1 is the root state.
        batch_tokens: greatest number of tokens of one forward pass. A single path may be longer.

    Raises:
        ValueError: ``wanted`` contains a turn that its tree does not have.
    """
    numbered = enumerate(zip(trees, wanted, strict=True))
    spines = [spine for number, (tree, turns) in numbered for spine in _spines(number, tree, turns) if spine.lasts]
    cut = [(spine.ids[: spine.lasts[-1][1] + 1], spine.lasts) for spine in spines]
    rows: list[tuple[Trie, list[tuple[Place, int]]]] = []  # with the tries' nodes of last tokens
    for ids, lasts in sorted(cut, key=lambda each: each[0]):  # so that long common prefixes become neighbours
        if not rows or len(rows[-1][0]) + len(ids) - rows[-1][0].shared(ids)[0] > batch_tokens:
            rows.append((Trie(), []))
        nodes = rows[-1][0].add(ids)
        rows[-1][1].extend((place, nodes[last]) for place, last in lasts)
    histories = []
    for trie, ends in rows:
        layout = trie.layout()
        ids_1S, position_1S, end_1S = (
            torch.from_numpy(x)[None] for x in (layout.ids_S, layout.position_S, layout.end_S)
        )
        last_Q = torch.from_numpy(layout.place_N[[node for _, node in ends]])
        histories.append(Histories(ids_1S, position_1S, end_1S, last_Q, [place for place, _ in ends]))
    return histories


def branchable(tree: RolloutTree) -> list[int]:
    """Returns -1 (the root state) and every turn that another turn follows: the places at which rollouts can branch."""
    parents = {turn.parent for turn in tree.turns}
    return [-1, *(i for i in range(len(tree.turns)) if i in parents)]


def _spines(number: int, tree: RolloutTree, turns: Collection[int]) -> Iterator[_Spine]:
    """Yields the conversations of the tree's paths. A path has several if observations begin new ones (``Turn.anew``)."""
    missing = set(turns)
    for leaf in tree.leaves() or [-1]:
        path = [-1, *tree.path(leaf)]
        if not (ends := missing.intersection(path)):
            continue
        missing -= ends
        spine = _Spine(list(tree.state.ids), [])
        for place in path:
            turn = tree.turns[place] if place >= 0 else None
            if turn is not None and turn.anew:
                yield spine
                spine = _Spine(list(turn.observation_ids), [])
            elif turn is not None:
                spine.ids.extend([*turn.action_ids, *turn.observation_ids])
            if place in ends:
                spine.lasts.append(((number, place), len(spine.ids) - 1))
        yield spine
    if missing:
        raise ValueError(f"state {tree.state.id!r} has no turns {sorted(missing)}")


# -- the critic --------------------------------------------------------------------------------------------------------


class Critic(LightningModule):
    """Predicts V(history) = sigmoid(w . h + b), where h is the last layer's hidden state at the history's last token,
    and w and b are the weights of the scalar head. They are 0 initially, so that every history has the value 1/2.

    ``backbone`` is a transformer without an output head, with tree attention. With ``autocast``, bfloat16 is computed
    with, whatever dtype the weights have.
    """

    def __init__(
        self, backbone: Any, learning_rate: float = 3e-5, weight_decay: float = 0.0, autocast: bool = False
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.learning_rate, self.weight_decay, self.autocast = learning_rate, weight_decay, autocast
        self.eval()  # no dropout, so that prediction and training see the same value of a history

    def forward(self, histories: Histories, forward_of: Callable[[Any], Forward] = own_forward) -> Tensor:
        """Returns the logits (Q,) of Q histories. The predicted success is the sigmoid of the logit."""
        of_row = (histories.ids_BS, histories.position_BS, histories.end_BS, histories.last_Q)
        ids_BS, position_BS, end_BS, last_Q = (x.to(self.device) for x in of_row)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            hidden_BSC = forward_of(self.backbone)(ids_BS, position_BS, plan_of(end_BS))
        return self.head(hidden_BSC.flatten(0, 1)[last_Q].float()).squeeze(-1)

    @torch.no_grad()
    def values(self, histories: Histories) -> Tensor:
        """Returns the predicted success (Q,) of Q histories, in [0, 1], without gradients."""
        return torch.sigmoid(self(histories, own_forward if self.autocast else forward_of_body))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)


# -- fitting the critic during training --------------------------------------------------------------------------------


class Target(NamedTuple):
    """The target of the history that ends at the root state or after a turn."""

    mean: float  # mean success of the valid leaves below this root state or turn
    leaves: int  # number of these leaves
    depth: int  # number of turns since the root


def predictor_targets(tree: RolloutTree, success: Sequence[float]) -> dict[int, Target]:
    """Returns a target for the root state (key -1) and for every turn after which a valid rollout continued.

    A tree that a gate stopped has no targets. ``success`` holds that of each leaf (see :func:`success_of`).
    """
    if tree.stopped:
        return {}
    total: dict[int, float] = {}
    count: dict[int, int] = {}
    for leaf, reward in zip(tree.leaves(), success, strict=True):
        if leaf in tree.invalid:
            continue
        for turn in [-1, *tree.path(leaf)[:-1]]:
            total[turn] = total.get(turn, 0.0) + reward
            count[turn] = count.get(turn, 0) + 1
    return {turn: Target(total[turn] / count[turn], count[turn], len(tree.path(turn))) for turn in total}


def success_of(tree: RolloutTree, rewards: Rewards, reward_max: float = 1.0) -> list[float]:
    """Returns the total reward of each leaf divided by ``reward_max``. It is NaN for a leaf whose environment failed.

    Raises:
        ValueError: a value is outside [0, 1]. The predictor cannot learn it, because it predicts a probability.
    """
    shares = [reward / reward_max for reward in rewards["total"]]
    for leaf, share in zip(tree.leaves(), shares, strict=True):
        if leaf not in tree.invalid and not 0 <= share <= 1:
            raise ValueError(
                f"state {tree.state.id!r}: the total reward of leaf {leaf} is {share * reward_max}, but a predictor "
                f"needs total rewards from 0 to predictor.reward_max={reward_max}: set predictor.reward_max to the "
                "greatest possible total reward (and use no reward below 0), or choose reward.of=won"
            )
    return shares


DEPTHS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, None))  # ranges of depth (turns since the root); None: no limit


class Prediction(NamedTuple):
    """The predicted success of a history, and its target (the measured success rate)."""

    value: float
    target: Target


def predictor_quality(roots: Sequence[Prediction], prefixes: Sequence[Prediction]) -> dict[str, float]:
    """Returns metrics of prediction quality for root states and for histories below them (prefixes).

    - ``spearman_*``, ``spearman_*_p``: Spearman's rank correlation between predictions and success rates, and its
      p-value (TRACE Eq. 22), for at least three histories.
    - ``captured_*``: the contrast of the half of the histories with the greatest V (1 - V), divided by the contrast of
      all histories (:func:`predictor_captured`). V is the predicted success.
    - ``captured_*_best``: the same fraction for the half with the greatest contrast (TRACE Figure 2b).
    - ``mse_depth/*``: the mean squared error of the predictions, for ranges of the number of turns since the root.

    Undefined values are left out.
    """
    metrics: dict[str, float] = {}
    for name, group in (("root", roots), ("prefix", prefixes)):
        values, means = [p.value for p in group], [p.target.mean for p in group]
        if len(group) >= 3 and len(set(values)) > 1 and len(set(means)) > 1:
            rho, p = spearmanr(values, means)
            metrics |= {f"spearman_{name}": float(rho), f"spearman_{name}_p": float(p)}
        shares = {
            f"captured_{name}": predictor_captured((uncertainty(p.value), uncertainty(p.target.mean)) for p in group),
            f"captured_{name}_best": predictor_captured((uncertainty(p.target.mean),) * 2 for p in group),
        }
        metrics |= {key: share for key, share in shares.items() if share is not None}
    errors: dict[str, list[float]] = defaultdict(list)
    for prediction in (*roots, *prefixes):
        errors[bucket(prediction.target.depth)].append((prediction.value - prediction.target.mean) ** 2)
    return metrics | {f"mse_depth/{name}": sum(group) / len(group) for name, group in errors.items()}


def uncertainty(success: float) -> float:
    return success * (1 - success)


def bucket(depth: int) -> str:
    low, high = next((low, high) for low, high in DEPTHS if high is None or depth <= high)
    return f"{low}+" if high is None else f"{low}" if low == high else f"{low}-{high}"


def predictor_captured(anchors: Iterable[tuple[float, float]], share: float = 0.5) -> float | None:
    """Returns the contrast of the fraction ``share`` of the anchors with the greatest ranks, divided by the contrast of all
    anchors (TRACE Figure 2b); None if no anchor has contrast. An anchor is a state or turn at which rollouts can branch:
    its rank, and its contrast p (1 - p), where p is the success rate of the rollouts that continue it.

    If only some of the anchors with equal ranks fit into this fraction, each of them counts partly. A ranking that
    ranks all anchors equally therefore gives ``share``.
    """
    ordered = sorted(anchors, key=lambda anchor: -anchor[0])
    total = sum(contrast for _, contrast in ordered)
    if not total:
        return None
    left, found = share * len(ordered), 0.0
    for _, group in groupby(ordered, key=lambda anchor: anchor[0]):
        alike = [contrast for _, contrast in group]
        served = min(len(alike), left)
        found += sum(alike) * served / len(alike)
        left -= served
    return found / total


Example = tuple[RolloutTree, int, Target]
"""A training example: a tree, the turn after which a history ends (-1: the root state), and the history's target."""


class OnlinePredictor(Callback):
    """Holds the critic of one run and its optimiser, predicts the success of histories and trains the critic.

    The class is a callback of the trainer, so that checkpoints contain the critic's weights and optimiser state. The
    settings are those of :class:`turnwise.config.settings.PredictorSettings`; ``seed`` is that of the order of the
    examples and of the choice of histories below the root.
    """

    def __init__(
        self,
        critic: Critic,
        epochs: int = 2,
        prefix_share: float = 0.06,
        batch: int = 32,
        clip_norm: float = 1.0,
        reward_max: float = 1.0,
        batch_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        self.critic, self.optimizer = critic, critic.configure_optimizers()
        self.epochs, self.prefix_share, self.batch, self.clip_norm = epochs, prefix_share, batch, clip_norm
        self.reward_max, self.batch_tokens, self.seed = reward_max, batch_tokens, seed
        self._known: dict[int, float] = {}  # predictions in this collection: name of a history -> value
        self._score_seconds = self._score_cpu = 0.0

    def success(self, reward: Reward) -> Callable[[RolloutTree], Rewards]:
        """A reward function that divides the total of ``reward`` by the greatest possible reward."""
        return lambda tree: {"total": success_of(tree, reward(tree), self.reward_max)}

    # -- predictions while rollouts run --------------------------------------------------------------------------------

    def values(self, trees: Sequence[RolloutTree]) -> list[list[float]]:
        """Returns 1 + N predictions for each tree of N turns: for its root state, and for the history after each turn.

        The value after the last turn of a rollout is 0. Tokens that several histories share are computed once.
        """
        began, cpu_began = time.monotonic(), time.process_time()
        by_turn = self._score(trees, [branchable(tree) for tree in trees])
        self._keep(trees, by_turn)
        self._score_seconds += time.monotonic() - began
        self._score_cpu += time.process_time() - cpu_began
        return [[values.get(turn, 0.0) for turn in range(-1, len(tree.turns))] for tree, values in zip(trees, by_turn)]

    def _score(self, trees: Sequence[RolloutTree], wanted: Sequence[Collection[int]]) -> list[dict[int, float]]:
        values: list[dict[int, float]] = [{} for _ in trees]
        for histories in read_spines(trees, wanted, self.batch_tokens):
            for (number, turn), value in zip(histories.places, self.critic.values(histories).tolist(), strict=True):
                values[number][turn] = value
        return values

    # -- training after every collection -------------------------------------------------------------------------------

    def learn(self, iteration: int, experience: Experience) -> dict[str, float]:
        """Trains the critic on the trees of an iteration and returns metrics of its predictions before this training."""
        began, cpu_began = time.monotonic(), time.process_time()
        roots: list[Example] = []
        prefixes: list[Example] = []
        for tree, rewards in zip(experience.trees, experience.rewards, strict=True):
            for turn, target in predictor_targets(tree, success_of(tree, rewards, self.reward_max)).items():
                if turn < 0:
                    roots.append((tree, turn, target))
                elif target.leaves > 1:  # one outcome says little about a history (TRACE: "informative" nodes)
                    prefixes.append((tree, turn, target))
        metrics = predictor_quality(self._predictions(roots), self._predictions(prefixes))
        rng = random.Random(seed_of(self.seed, "predictor", iteration))
        share = self.prefix_share / (1 - self.prefix_share)
        wanted = max(round(share * len(roots)), 1) if share else 0  # with few roots, 6 % of them would be none
        examples = roots + rng.sample(prefixes, min(len(prefixes), wanted))
        losses: list[float] = []
        for _ in range(self.epochs):
            rng.shuffle(examples)
            losses = [self._step(examples[i : i + self.batch]) for i in range(0, len(examples), self.batch)]
        if losses:
            metrics["loss"] = sum(losses) / len(examples)
        metrics = {f"predictor/{name}": value for name, value in metrics.items()}
        metrics["seconds/predictor_score"] = self._score_seconds
        metrics["seconds/predictor_learn"] = time.monotonic() - began
        metrics["cpu/predictor"] = self._score_cpu + time.process_time() - cpu_began
        self._known, self._score_seconds, self._score_cpu = {}, 0.0, 0.0
        return metrics

    def _predictions(self, examples: Sequence[Example]) -> list[Prediction]:
        names = {id(tree): history_names(tree) for tree, _, _ in examples}
        missing: dict[int, tuple[RolloutTree, list[int]]] = {}
        for tree, turn, _ in examples:
            if names[id(tree)][turn] not in self._known:
                missing.setdefault(id(tree), (tree, []))[1].append(turn)
        trees = [tree for tree, _ in missing.values()]
        self._keep(trees, self._score(trees, [turns for _, turns in missing.values()]))
        return [Prediction(self._known[names[id(tree)][turn]], target) for tree, turn, target in examples]

    def _keep(self, trees: Sequence[RolloutTree], by_turn: Sequence[Mapping[int, float]]) -> None:
        for tree, values in zip(trees, by_turn, strict=True):
            names = history_names(tree)
            self._known |= {names[turn]: value for turn, value in values.items()}

    def _step(self, examples: Sequence[Example]) -> float:
        wanted: dict[int, tuple[RolloutTree, dict[int, float]]] = {}
        for tree, turn, target in examples:
            wanted.setdefault(id(tree), (tree, {}))[1][turn] = target.mean
        trees = [tree for tree, _ in wanted.values()]
        told = [means for _, means in wanted.values()]
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for histories in read_spines(trees, told, self.batch_tokens):
            target_Q = torch.tensor([told[number][turn] for number, turn in histories.places])
            # the sum of squared errors, TRACE Eq. 19 without the mean
            loss = (torch.sigmoid(self.critic(histories)) - target_Q.to(self.critic.device)).square().sum()
            (loss / len(examples)).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.critic.parameters(), self.clip_norm)
        self.optimizer.step()
        return total

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"critic": self.critic.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.critic.load_state_dict(state_dict["critic"])
        self.optimizer.load_state_dict(state_dict["optimizer"])


def history_names(tree: RolloutTree) -> dict[int, int]:
    """Returns turn -> a number that names the history after this turn (-1: the root state) by its tokens, because turns
    are renumbered when all rollouts of a group have ended, and several trees may begin at one state.
    """
    names = {-1: hash(tree.state.ids)}
    for place, turn in enumerate(tree.turns):
        content = (tuple(turn.action_ids), tuple(turn.observation_ids), turn.anew)
        names[place] = hash((names[turn.parent], content))
    return names


def load_predictor(settings: Any, source: str, tokenizer: Any, seed: int, device: torch.device) -> OnlinePredictor:
    """Builds the critic from ``settings`` (:class:`turnwise.config.settings.PredictorSettings`) with the initial weights
    ``source``, a folder or Hugging Face id. ``tokenizer`` is the policy's.

    Raises:
        InputError: ``source`` names no model, or the model cannot be used.
    """
    backbone, own = load_backbone(source, settings.dtype, settings.layers)
    if own.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"predictor.model={settings.model}: it must have the policy's vocabulary; set predictor=qwen3_0_6b for a policy "
            "of the Qwen3 family, or predictor.model=... to a model of the policy's family"
        )
    critic = Critic(backbone, settings.learning_rate, settings.weight_decay, settings.autocast).to(device)
    names = ("epochs", "prefix_share", "batch", "clip_norm", "reward_max", "batch_tokens")
    options = {name: getattr(settings, name) for name in names}
    return OnlinePredictor(critic, **options, seed=seed)


# -- the probability of the true answer --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerProbability:
    """The function of a tree's histories that :class:`turnwise.methods.turn_rewards.Igpo` reads. ``model`` is the policy
    that is trained, so the values are those of its weights when the credit is computed.
    """

    model: Any
    chat: ChatTokens
    environment: Environment
    row_tokens: int = 4096

    @torch.no_grad()
    def __call__(self, trees: Sequence[RolloutTree]) -> list[list[float]]:
        """Returns 1 + N values for each tree of N turns: for its root, and for the history after each turn. A value is
        the geometric mean of the probabilities of the answer's tokens; after the last turn of a rollout it is 0.

        Raises:
            InputError: a task has no written answer.
        """
        with_answers = [self._with_answers(tree) for tree in trees]
        values = [[0.0] * (1 + len(tree.turns)) for tree in trees]
        device = next(self.model.parameters()).device
        for number, (tree, credit) in enumerate(with_answers):
            update = pack([tree], [credit], self.row_tokens, 2 * self.row_tokens)
            answers = [turn.parent for turn, weight in zip(tree.turns, credit.weight, strict=True) if weight]
            for batch in update.batches:
                logprobs_U, _ = score(self.model, batch.to(device))
                of_answer: dict[int, list[float]] = defaultdict(list)
                logprobs_K = logprobs_U[batch.items.unique_K.to(device)].tolist()
                for place, logprob in zip(batch.items.turn_K.tolist(), logprobs_K, strict=True):
                    of_answer[place].append(logprob)
                for place, own in of_answer.items():
                    values[number][answers[place] + 1] = math.exp(math.fsum(own) / len(own))
        return values

    def _with_answers(self, tree: RolloutTree) -> tuple[RolloutTree, Credit]:
        """The tree with the answer as a further turn after each history, and a credit that asks for these turns only."""
        task = tree.state.task
        text = environment_of(self.environment, task).solution(task)
        if text is None:
            raise InputError(
                f"advantage=igpo: environment {task.env!r} has no written answer of its tasks (task {task.id}); choose an "
                "environment with questions, such as env=search"
            )
        ids = self.chat.action(text)[:-1]  # without the end of the turn
        answers = [Turn(parent, ids, [0.0] * len(ids), text) for parent in branchable(tree)]
        turns = [*tree.turns, *answers]
        weights = [0.0] * len(tree.turns) + [1.0] * len(answers)
        return replace(tree, turns=turns, stopped=False), Credit(
            [0.0] * len(turns), weights, sample=list(range(len(turns)))
        )
