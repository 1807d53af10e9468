"""The audit of credit: what a turn was worth, measured by replay, and every advantage rule held against it.

A turn's true advantage is A = Q(s, a) - V(s) under the policy, where V of a history is the probability that the policy
wins from there. Episodes can be forked, so both are measured: N continuations start after the turn, and N before it.
The rules never see these continuations. They see trees that are played anew, in which one rollout repeats the episode
up to the audited turn and everything else is drawn afresh. Several such trees for each turn separate a rule's bias (what
the mean of its credit gets wrong) from its variance (what changes from tree to tree).

1. N continuations after and before some turns of played episodes            measure_advantages
2. trees with the audited turn in them, by each allocator; its credit there  replay_audited_turns, credit_per_rollout
3. signal, bias, variance, sign and rank agreement, resampled by task        score_rules
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.engines.engine import Engine, Sample, Sampling, Told
from turnwise.errors import InputError
from turnwise.evaluation.stats import Estimate, wilson
from turnwise.evaluation.suites import TOGETHER
from turnwise.methods.allocate import Allocator, TreePO, Uniform
from turnwise.methods.awpo import Awpo
from turnwise.methods.credit import Advantage, GroupAdvantage, MonteCarlo, TreeGRPO
from turnwise.methods.gate import Never
from turnwise.methods.reward import Outcome
from turnwise.methods.trace import TreeRPO
from turnwise.methods.turn_rewards import MTGRPO, GiGPO, TurnCredit
from turnwise.rollouts.player import Player, Tally, seed_of
from turnwise.types import Credit, Rewards, RolloutTree, State
from turnwise_study.gates.statistics import difference

Array = NDArray[np.float64]
WON = Outcome()
KEPT = 16  # audited turns whose trees are in memory at once


class EveryTurn:
    """Starts one rollout, and three more at its start and after each of its turns (VinePPO's values of every step,
    arXiv:2410.01679).
    """

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [1] * len(states)

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [dict.fromkeys(sorted({turn.parent for turn in tree.turns}), 3) for tree in trees]


FORMS: Mapping[str, Allocator] = {"group": Uniform(8), "tree": TreePO(4, 2), "vine": EveryTurn()}
"""Name -> how a tree is played: eight rollouts; four, each with two continuations of random turns (the same cost in
TRACE's accounting); or one with three continuations of every turn.
"""

RULES: Mapping[str, tuple[str, Advantage]] = {
    "group": ("group", GroupAdvantage()),
    "group, no std (Dr.GRPO)": ("group", GroupAdvantage(scale=False)),
    "group, leave one out (RLOO)": ("group", GroupAdvantage(scale=False, baseline="leave_one_out")),
    "AWPO, no judge": ("group", Awpo()),
    "GiGPO": ("group", GiGPO()),
    "GiGPO, no discount": ("group", GiGPO(gamma=1.0)),
    "GiGPO, whole history": ("group", GiGPO(anchor="history")),
    "GiGPO, no std": ("group", GiGPO(scale=False)),
    "turn credit": ("group", TurnCredit(turn_reward="admissible", turn_offset=-1.0)),
    "turn credit, rewards to go": ("group", TurnCredit(form="to_go")),
    "MT-GRPO": ("group", MTGRPO(turn_reward="admissible")),
    "MT-GRPO unbiased": ("group", MTGRPO(form="unbiased", turn_reward="admissible", turn_offset=-1.0)),
    "group on trees": ("tree", GroupAdvantage()),
    "GiGPO on trees": ("tree", GiGPO()),
    "turn credit on trees": ("tree", TurnCredit(turn_reward="admissible", turn_offset=-1.0)),
    "MT-GRPO on trees": ("tree", MTGRPO(turn_reward="admissible")),
    "MT-GRPO unbiased on trees": ("tree", MTGRPO(form="unbiased", turn_reward="admissible", turn_offset=-1.0)),
    "TreeRPO": ("tree", TreeRPO()),
    "Tree-GRPO": ("tree", TreeGRPO()),
    "Tree-GRPO, whole tree": ("tree", TreeGRPO(intra="tree")),
    "Monte Carlo": ("tree", MonteCarlo()),
    "Monte Carlo, no std": ("tree", MonteCarlo(scale=False)),
    "Monte Carlo at every turn (VinePPO)": ("vine", MonteCarlo(scale=False)),
    "group at every turn": ("vine", GroupAdvantage()),
}
"""Name -> the form of tree, and the rule. A turn whose action is refused costs 1 in the rules for rewards of turns, or earns
nothing in MT-GRPO; all other settings are those of ``conf/advantage`` unless the name says otherwise.
"""

TRAINED: Mapping[str, str] = {
    "Group": "group on trees", "TreeRPO": "TreeRPO", "Tree-GRPO": "Tree-GRPO", "GiGPO": "GiGPO on trees",
    "MT-GRPO": "MT-GRPO on trees", "MT-GRPO unbiased": "MT-GRPO unbiased on trees",
    "Turn credit": "turn credit on trees", "Monte Carlo": "Monte Carlo",
}  # fmt: skip
"""Label of a row of the sweeps ``turnwise_credit`` and ``turnwise_credit_household``, which train on such trees -> its rule."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The measured value of a history: ``wins`` of ``trials`` continuations. With 0 trials, ``wins`` is the exact value:
    the outcome of an episode that has ended, or a value that the world knows.
    """

    wins: float
    trials: int

    @property
    def mean(self) -> float:
        return self.wins / self.trials if self.trials else float(self.wins)

    @property
    def variance(self) -> float:
        """Unbiased estimate of the variance of :attr:`mean`."""
        return self.mean * (1 - self.mean) / (self.trials - 1) if self.trials else 0.0

    def estimate(self) -> Estimate:
        """The mean with its 95 % interval (Wilson's)."""
        return wilson(int(self.wins), self.trials) if self.trials else Estimate(self.mean, self.mean, self.mean)


@dataclass(frozen=True, slots=True)
class AuditedTurn:
    """The turn after ``place`` others on the only path of ``path``, with the measured Q(s, a) and V(s)."""

    path: RolloutTree
    place: int
    q: Worth
    v: Worth

    @property
    def advantage(self) -> float:
        return self.q.mean - self.v.mean

    @property
    def variance(self) -> float:
        return self.q.variance + self.v.variance

    def interval(self) -> tuple[float, float]:
        """95 % interval of the advantage (Newcombe's for two proportions, as in the reports on gates)."""
        ends = difference(self.q.estimate(), self.v.estimate())
        assert ends is not None
        return ends

    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the advantage is 0 (the score test of two proportions)."""
        counts = [worth for worth in (self.q, self.v) if worth.trials]
        pooled = sum(worth.wins for worth in counts) / max(1, sum(worth.trials for worth in counts))
        if len(counts) < 2:  # a value is exact
            pooled = next(worth.mean for worth in (self.q, self.v) if not worth.trials)
        spread = math.sqrt(pooled * (1 - pooled) * sum(1 / worth.trials for worth in counts))
        if not spread:
            return float(abs(self.advantage) < 1e-9)
        return math.erfc(abs(self.advantage) / spread / math.sqrt(2))


def trials_for(error: float) -> int:
    """The number of continuations for which no value has a larger standard error than ``error``."""
    return math.ceil(0.25 / error**2)


def state_after(path: RolloutTree, turns: int) -> State:
    state, actions = path.state, tuple(turn.text for turn in path.turns[:turns])
    ids = tuple(path.history(turns - 1))
    return replace(state, id=f"{state.id}+{turns}", ids=ids, actions=state.actions + actions, turn=state.turn + turns)


def in_parts(
    player: Player, states: Sequence[State], allocator: Allocator, each: int, key: object
) -> list[RolloutTree]:
    """Plays trees of about ``each`` rollouts, at most ``TOGETHER`` rollouts at once."""
    step = max(1, TOGETHER // each)
    trees: list[RolloutTree] = []
    for start in range(0, len(states), step):
        trees += player.play(states[start : start + step], allocator, Never(), key)
        player.forget()
    return trees


def measure_advantages(
    player: Player, paths: Sequence[RolloutTree], places: Sequence[Sequence[int]], trials: int, key: object
) -> list[AuditedTurn]:
    """Measures Q and V of the turns at ``places`` of each path. Turns whose environment failed are left out."""
    wanted = [
        (number, turns)
        for number, path in enumerate(paths)
        for turns in sorted({at + step for at in places[number] for step in (0, 1)} - {len(path.turns)})
    ]
    states = [state_after(paths[number], turns) for number, turns in wanted]
    worth: dict[tuple[int, int], Worth] = {}
    for node, tree in zip(wanted, in_parts(player, states, Uniform(trials), trials, (key, "values")), strict=True):
        if outcomes := wins_of(tree):
            worth[node] = Worth(sum(outcomes), len(outcomes))
    for number, path in enumerate(paths):
        if outcome := wins_of(path):
            worth[number, len(path.turns)] = Worth(outcome[0], 0)
    return [
        AuditedTurn(path, place, worth[number, place + 1], worth[number, place])
        for number, path in enumerate(paths)
        for place in places[number]
        if {(number, place), (number, place + 1)} <= worth.keys()
    ]


def wins_of(tree: RolloutTree) -> list[int]:
    totals = zip(tree.leaves(), WON(tree)["total"], strict=True) if tree.turns else ()
    return [int(total) for leaf, total in totals if leaf not in tree.invalid]


class AuditEngine:
    """An engine that gives recorded actions for the draws in ``recorded`` (seed -> action), and lets ``engine`` sample
    all other actions. Draws are named, so a rollout can be made to repeat a part of an earlier one.
    """

    def __init__(self, engine: Engine, recorded: Mapping[int, Sample]) -> None:
        if getattr(engine, "served", False) or getattr(engine, "schedule", "rounds") != "rounds":
            raise InputError("the audit repeats recorded turns in batches: set engine=tree engine.schedule=rounds")
        self.engine, self.recorded = engine, recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        fresh = [place for place, seed in enumerate(seeds) if seed not in self.recorded]
        samples = {place: self.recorded[seed] for place, seed in enumerate(seeds) if seed in self.recorded}
        for place, sample in samples.items():
            self.engine.extend(nodes[place], sample.ids)
            if on_sample is not None:
                on_sample(place, sample)
        callback = None if on_sample is None else lambda place, sample: on_sample(fresh[place], sample)
        if fresh:
            drawn = self.engine.sample([nodes[p] for p in fresh], sampling, [seeds[p] for p in fresh], callback)
            samples.update(zip(fresh, drawn, strict=True))
        return [samples[place] for place in range(len(nodes))]


def replay_audited_turns(
    player: Player, turns: Sequence[AuditedTurn], allocator: Allocator, each: int, replicates: int, key: object
) -> list[list[RolloutTree]]:
    """Returns for each audited turn ``replicates`` trees of its task. The first rollout of a tree repeats the turns of
    the path up to the audited one; all other actions are drawn afresh.
    """
    recorded: dict[int, Sample] = {}
    states = []
    for audited in turns:
        for number in range(replicates):
            root = audited.path.state
            state = replace(root, id=f"{root.id}+{audited.place}/{number}")
            states.append(state)
            for depth, turn in enumerate(audited.path.turns[: audited.place + 1]):
                seed = seed_of(key, state.id, -1, 0, depth)  # as rollouts.player.Branch.seed names it
                recorded[seed] = Sample(list(turn.action_ids), list(turn.logprobs), turn.truncated)
    repeating = replace(player, engine=AuditEngine(player.engine, recorded), tally=player.tally)
    trees = in_parts(repeating, states, allocator, each, key)
    return [trees[at : at + replicates] for at in range(0, len(trees), replicates)]


def repeated_turn(tree: RolloutTree, audited: AuditedTurn) -> int:
    """The index in ``tree`` of the audited turn, which its first rollout repeats."""
    children, at = tree.children(), -1
    for turn in audited.path.turns[: audited.place + 1]:
        at = children[at][0]
        if tree.turns[at].action_ids != turn.action_ids:
            raise RuntimeError(f"state {tree.state.id}: the first rollout does not repeat the audited path")
    return at


def credit_per_rollout(credit: Credit, tree: RolloutTree, turn: int) -> float:
    """The credit of a turn for each of the rollouts that share it. Rules that give leaves their advantages add up those
    of all rollouts through a turn (``advantage.spread``); rules with samples of their own do not.
    """
    if not credit.weight[turn]:
        return 0.0
    sharing = 1 if credit.sample is not None else sum(turn in tree.path(leaf) for leaf in tree.valid_leaves())
    return credit.advantage[turn] / sharing


@dataclass(frozen=True, slots=True)
class Truth:
    """The true advantages of T turns: measured value, variance of its error, whether it differs from 0 at a false
    discovery rate of 5 %, and the number of the task (turns of one task are resampled together).
    """

    advantage_T: Array
    variance_T: Array
    matters_T: NDArray[np.bool_]
    task_T: NDArray[np.int64]

    def some(self, turns: NDArray[np.int64]) -> Truth:
        return Truth(self.advantage_T[turns], self.variance_T[turns], self.matters_T[turns], self.task_T[turns])


def truth_of(turns: Sequence[AuditedTurn], tasks: Sequence[int]) -> Truth:
    from scipy.stats import false_discovery_control

    adjusted = false_discovery_control([turn.p_value() for turn in turns])
    advantage_T, variance_T = np.array([(turn.advantage, turn.variance) for turn in turns]).T
    return Truth(advantage_T, variance_T, adjusted <= 0.05, np.array(tasks))


def score_rule(credit_TR: Array, truth: Truth, tokens: float) -> dict[str, float]:
    """Compares a rule's credit with the true advantages.

    E[c | turn] = gain A + error. The mean square of the credit is the sum of ``signal`` = gain^2 E[A^2], ``bias`` =
    E[error^2] and ``variance`` = E[Var(c | turn)]; the three are given as shares, from estimates that neither the noise
    of the audit nor the number of replicates biases (so one may fall below 0). A factor common to all credit changes
    none of them: an optimiser does not notice it. ``sign`` is the share of credits with the sign of A, over the turns
    that matter; no credit counts one half. ``rank`` is Spearman's correlation. ``snr`` is signal / (bias + variance)
    for each 1,000 generated tokens: that of a mean over trees grows with their number.

    Args:
        credit_TR: the credit of T turns in R replicates each.
        tokens: mean number of generated tokens of a tree.
    """
    from scipy.stats import spearmanr

    turns, replicates = credit_TR.shape
    mean_T = credit_TR.mean(1)
    variance = float(credit_TR.var(1, ddof=1).mean())
    square = float((credit_TR**2).mean())
    power = float((truth.advantage_T**2 - truth.variance_T).mean())
    product_T = mean_T * truth.advantage_T
    # the square of the mean product, from pairs of different tasks: errors of turns of one task are correlated
    of_task = np.bincount(truth.task_T, product_T)
    pairs = turns**2 - float((np.bincount(truth.task_T) ** 2).sum())
    crossed = (product_T.sum() ** 2 - float((of_task**2).sum())) / pairs if pairs else math.nan
    signal = crossed / power if power > 0 else math.nan
    snr = signal / (square - signal) * 1000 / tokens if square > signal else math.nan
    agrees_TR = (np.sign(credit_TR) * np.sign(truth.advantage_T)[:, None] + 1) / 2
    varied = bool(np.ptp(credit_TR)) and bool(np.ptp(truth.advantage_T))
    rank = spearmanr(credit_TR.ravel(), np.repeat(truth.advantage_T, replicates)).statistic if varied else math.nan
    return {
        "gain": float(product_T.mean()) / power if power > 0 else math.nan,
        "signal": signal / square if square else math.nan,
        "bias": (square - variance - signal) / square if square else math.nan,
        "variance": variance / square if square else math.nan,
        "sign": float(agrees_TR[truth.matters_T].mean()) if truth.matters_T.any() else math.nan,
        "rank": float(rank),
        "snr": -snr if signal > 0 > product_T.mean() else snr,  # credit of the wrong sign is no signal
        "silent": float((credit_TR == 0).mean()),
        "mean_error": float((mean_T - truth.advantage_T).mean()),
    }


def score_rules(
    credits: Mapping[str, Array], tokens: Mapping[str, float], truth: Truth, resamples: int = 400, seed: int = 0
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Returns rule -> metric -> ``value``, ``low`` and ``high``, the ends of a 95 % percentile bootstrap over tasks. All
    rules are resampled with the same tasks.
    """
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(truth.task_T == task) for task in np.unique(truth.task_T)]
    rows = rng.integers(0, len(members), (resamples, len(members)))
    drawn = [np.concatenate([members[i] for i in row]) for row in rows]
    scores_of: dict[str, dict[str, dict[str, float | None]]] = {}
    for rule, credit_TR in credits.items():
        whole = score_rule(credit_TR, truth, tokens[rule])
        again = [score_rule(credit_TR[turns], truth.some(turns), tokens[rule]) for turns in drawn]
        scores_of[rule] = {}
        for metric, number in whole.items():
            values = [one[metric] for one in again if math.isfinite(one[metric])] or [math.nan]
            ends = dict(zip(("low", "high"), np.quantile(values, [0.025, 0.975]).tolist(), strict=True))
            parts = {"value": number, **ends}
            scores_of[rule][metric] = {name: part if math.isfinite(part) else None for name, part in parts.items()}
    return scores_of


@dataclass(slots=True)
class AuditPart:
    """The audit of one seed: its turns, the credit of each rule there (T, R), and what it cost."""

    turns: list[AuditedTurn]
    credits: dict[str, Array]
    tokens: dict[str, float]  # rule -> mean number of generated tokens of a tree
    cost: dict[str, dict[str, float]] = field(default_factory=dict)  # step -> turns, tokens and CPU seconds
    trees: list[tuple[RolloutTree, Rewards, int, AuditedTurn]] = field(default_factory=list)  # to be recorded


def audit(
    player: Player,
    paths: Sequence[RolloutTree],
    rules: Mapping[str, tuple[str, Advantage]],
    key: object,
    *,
    turns: int = 4,
    error: float = 0.1,
    replicates: int = 4,
    exact: Callable[[RolloutTree, int], float] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> AuditPart:
    """Audits ``turns`` drawn turns of each path with every rule.

    Args:
        player: plays with the policy to be audited. Its rollouts must run to the end of the episode.
        paths: episodes as trees without branches, played by the same policy from starts of tasks.
        key: names every draw of the audit.
        error: the wanted standard error of a value; it decides the number of continuations.
        replicates: number of trees in which each turn is repeated, for each form of tree; at least 2.
        exact: returns the value of a path after its first turns, in a world whose values are known; nothing is measured.
    """
    cost: dict[str, dict[str, float]] = {}

    def paid(step: str, began: float, tally: Tally) -> None:
        seconds = round(time.process_time() - began, 2)
        cost[step] = {"turns": tally.turns, "tokens": tally.tokens, "cpu_seconds": seconds}
        say(f"{step}: {tally.turns:,} turns, {tally.tokens:,} tokens, {seconds} CPU seconds")

    began, counting = time.process_time(), player.using(player.sampling, None)
    draws = [random.Random(seed_of(key, path.state.id, "turns")) for path in paths]
    lengths = [len(path.turns) for path in paths]
    places = [sorted(rng.sample(range(n), min(turns, n))) for rng, n in zip(draws, lengths, strict=True)]
    if exact is None:
        audited = measure_advantages(counting, paths, places, trials_for(error), key)
    else:
        audited = [
            AuditedTurn(path, at, Worth(exact(path, at + 1), 0), Worth(exact(path, at), 0))
            for path, chosen in zip(paths, places, strict=True)
            for at in chosen
        ]
    paid("values", began, counting.tally)
    part = AuditPart(audited, {}, {}, cost)
    for form in dict.fromkeys(form for form, _ in rules.values()):
        began, counting = time.process_time(), player.using(player.sampling, None)
        each = 12 if form != "vine" else 3 * max(lengths)
        chosen = {name: rule for name, (of, rule) in rules.items() if of == form}
        credits = {name: np.zeros((len(audited), replicates)) for name in chosen}
        tokens = 0
        for start in range(0, len(audited), KEPT):
            again = replay_audited_turns(
                counting, audited[start : start + KEPT], FORMS[form], each, replicates, (key, form)
            )
            for t, trees in enumerate(again, start):
                for r, tree in enumerate(trees):
                    rewards, turn = WON(tree), repeated_turn(tree, audited[t])
                    tokens += sum(len(node.action_ids) for node in tree.turns)
                    for name, rule in chosen.items():
                        credits[name][t, r] = credit_per_rollout(rule(tree, rewards), tree, turn)
                    if r == 0 and form != "vine":
                        part.trees.append((tree, rewards, turn, audited[t]))
        paid(f"trees: {form}", began, counting.tally)
        part.credits |= credits
        part.tokens |= dict.fromkeys(credits, tokens / max(1, len(audited) * replicates))
    return part


def join_audits(parts: Sequence[AuditPart]) -> tuple[Truth, dict[str, Array], dict[str, float]]:
    """The true advantages, and each rule's credit and mean tokens, of the audits of several seeds together."""
    ids = [f"{number}/{turn.path.state.id}" for number, part in enumerate(parts) for turn in part.turns]
    tasks = np.unique(ids, return_inverse=True)[1].tolist()
    truth = truth_of([turn for part in parts for turn in part.turns], tasks)
    rules = parts[0].credits
    credits = {rule: np.concatenate([part.credits[rule] for part in parts]) for rule in rules}
    return truth, credits, {rule: float(np.mean([part.tokens[rule] for part in parts])) for rule in rules}
