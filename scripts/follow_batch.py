"""Follows one group of a small PivotRL run from the expert's trajectory to the changed weights, and prints numbers.

python scripts/follow_batch.py
python scripts/follow_batch.py --write     also puts the numbers into docs/follow-one-batch.md, which explains them

It is an ordinary run (training/loop.py) with few demonstrations and one iteration, in a folder that is removed
afterwards. The group belongs to the second optimiser step, in which the policy differs from the sampling policy: the
ratio is not 1, the KL not 0. Exit status: 0 done; 2 an argument or the page cannot be used.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import Callback
from torch import Tensor

from turnwise.config.schema import compose_config
from turnwise.console import Terminal
from turnwise.methods.loss import Counts, Loss, LossInputs, Mean
from turnwise.methods.states import Profile
from turnwise.programs import options, program
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.pack import Update, pack
from turnwise.training.build_run import BasePolicy, Settings, build_parts, player_of, trainer_of
from turnwise.training.candidates import Candidates, read_candidates
from turnwise.training.iterations import Collection, Rollouts
from turnwise.training.loop import prepare
from turnwise.training.policy_module import PolicyModule
from turnwise.training.profile import Choice
from turnwise.training.progress import Phases
from turnwise.training.recorder import Recorder
from turnwise.types import Credit, Rewards, RolloutTree
from turnwise_study.tables import cell, facts, grid, write_section

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "follow-one-batch.md"
OVERRIDES = (
    "method=pivotrl", "seed=0", "data.trajectories=24", "rollout.states=16", "rollout.trajectories=8", "update.steps=2",
    "update.warmup=0", "iterations=1", "eval.every=0", "engine.lanes=1",
)  # fmt: skip
SHOWN = 14  # number of tokens shown of the packed row after the state


class Score(NamedTuple):
    """The log-probs and the loss of one action, before or after the optimiser step."""

    logprob: float  # of the whole action, in nats
    reference: float  # the same under the reference pi_0
    ratio: float
    kl: float  # k3, summed over the action's tokens
    loss: float  # loss of this action alone


class Watch(Callback):
    """Observes one iteration of a run: first the collection, as a learner, then the second step, as a callback.

    A learner is a part that learns from each collection, such as a predictor. This learner only observes.
    """

    experience: Experience
    tree: RolloutTree
    credit: Credit
    rewards: Rewards
    alone: Update  # the group packed by itself
    update: Update  # the update of the second step, which contains the group
    rate: float
    norm: float  # norm of the step's gradient, after clipping

    def __init__(self, settings: Settings, policy: BasePolicy, module: PolicyModule) -> None:
        self.settings, self.policy, self.module = settings, policy, module
        # values before and after the step:
        self.scores: list[list[Score]] = []  # scores of the group's actions
        self.losses: list[float] = []  # losses of the whole update
        self.weights: list[Tensor] = []

    def learn(self, iteration: int, experience: Experience) -> Mapping[str, float]:
        """Chooses the first group with an advantage among the groups of the second optimiser step."""
        self.experience = experience
        second = range(len(experience.trees) // 2, len(experience.trees))
        place = next(i for i in second if any(experience.credits[i].weight))
        self.tree, self.credit = experience.trees[place], experience.credits[place]
        self.rewards = experience.rewards[place]
        update = self.settings.update
        self.alone = pack([self.tree], [self.credit], update.row_tokens, update.batch_tokens)
        return {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Update, batch_idx: int) -> None:
        if batch_idx == 1:
            self.update, self.rate = batch, trainer.optimizers[0].param_groups[0]["lr"]
            self._look()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        gradients = [p.grad.flatten() for p in self.module.parameters() if p.grad is not None]
        self.norm = float(torch.cat(gradients).norm())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Update, batch_idx: int) -> None:
        if batch_idx == 1:
            self._look()

    @torch.no_grad()
    def _look(self) -> None:
        module = self.module
        self.weights.append(torch.cat([p.flatten() for p in module.parameters() if p.requires_grad]).clone())
        work = zip(self.update.batches, module.references(self.update), strict=True)
        self.losses.append(sum(float(module.loss(module.loss_inputs(b, self.update, r)).loss) for b, r in work))
        inputs = module.loss_inputs(self.alone.batches[0], self.alone, module.references(self.alone)[0])
        self.scores.append([score(module.loss, inputs, turn) for turn in range(len(self.tree.turns))])


def score(loss: Loss, inputs: LossInputs, turn: int) -> Score:
    """Returns one action's log-probs, and the loss of that action alone, computed with the run's own loss."""
    chosen_K = inputs.turn_K == turn
    given: dict[str, Any] = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    given |= {name: value[chosen_K] for name, value in given.items() if isinstance(value, Tensor)}
    given["counts"] = Counts(float(chosen_K.sum()), 1, 1)
    output = loss(LossInputs(**given))
    ratio, kl = output.metrics["ratio_mean"], output.metrics["kl_ref"]
    assert isinstance(kl, Mean)
    logprob, reference = (float(given[name].sum()) for name in ("logprobs_K", "ref_logprobs_K"))
    return Score(logprob, reference, ratio.value, kl.total, float(output.loss))


def follow(folder: Path) -> dict[str, str]:
    """Executes one iteration of the run with ``folder`` for its files. Returns the tables of the page by name."""
    cfg = compose_config([*OVERRIDES, f"paths.out={folder / 'run'}", f"paths.cache={folder / 'cache'}"], ROOT / "conf")
    prepare(int(cfg.seed))
    phases = Phases(Terminal(stderr=True, quiet=True))
    settings, parts, policy = build_parts(cfg)
    module = PolicyModule(
        policy.model, parts.loss, settings.update, settings.iterations, settings.rollout.sampling.temperature
    )
    player = player_of(cfg, settings, parts, policy, phases.log)
    watch = Watch(settings, policy, module)
    try:
        candidates = read_candidates(settings, parts, policy.chat, phases)
        states = candidates.fitting(settings, parts, phases)
        one_turn = player.using(settings.rollout.sampling, max_turns=1)
        profiles, kept, _ = Choice(settings, parts, states, one_turn, module, phases).profiled()
        recorder = Recorder(settings.folder, candidates.messages)
        learning = replace(parts, predictor=watch)  # type: ignore[arg-type]  # takes the place of a learner
        collection = Collection(settings, learning, kept, player, module, recorder)
        data = Rollouts(collection, collection, settings.update.steps)
        with phases.phase("train", settings.iterations):
            trainer_of(cfg, settings, [recorder, watch], []).fit(module, data)
    finally:
        player.engine.shutdown()
    counts = {"expert trajectories": cfg.data.trajectories, "candidate turns": len(states), "pivots": len(kept)}
    return {
        "state": of_state(watch, candidates, counts),
        "profile": of_profile(profiles[watch.tree.state.id], cfg.states.lambda_diff),
        "group": of_group(watch),
        "pack": of_pack(watch),
        "loss": of_loss(watch),
        "step": of_step(watch),
    }


def of_state(watch: Watch, candidates: Candidates, counts: Mapping[str, int]) -> str:
    """Returns a table of the number of states where the run may act, and of the state that is followed."""
    state = watch.tree.state
    seen = candidates.messages(state)
    return facts(
        {
            **counts,
            "state": f"`{state.id}`",
            "first message": cell(seen[0]["content"]),
            "last message": cell(seen[-1]["content"]),
            "tokens of the history": len(state.ids),
            "last of them": " ".join(f"`{token}`" for token in names(watch, state.ids[-4:])),
            "expert's action": f"`{state.expert}`",
            "its tokens": " ".join(f"`{token}`" for token in names(watch, state.expert_ids)),
        }
    )


def of_profile(profile: Profile, lambda_diff: float) -> str:
    """Returns a table of the rewards of K actions under pi_0."""
    rewards = " ".join(f"{reward:g}" for reward in profile.functional)
    numbers = {"mu": f"{profile.mean:.4f}", "sigma^2": f"{profile.variance:.4f}", "lambda_diff": lambda_diff}
    return facts({"rewards": rewards, **numbers})


def of_group(watch: Watch) -> str:
    """Returns a table of the group's sampled actions; equal actions share a row."""
    rows: list[list[object]] = []
    for i, times in distinct(watch.tree):
        turn = watch.tree.turns[i]
        verdicts = ["yes" if turn.info[name] else "no" for name in ("functional", "strict")]
        reward, advantage = watch.rewards["total"][i], watch.credit.advantage[i]
        rows.append([f"`{turn.text}`", times, len(turn.action_ids), *verdicts, f"{reward:g}", f"{advantage:+.4f}"])
    return grid(["action", "times", "tokens", "accepted", "the expert's", "r", "A"], rows)


def of_pack(watch: Watch) -> str:
    """Returns a table of the packed row that holds the group, from the last tokens of the state on."""
    packed, items, first = watch.alone.batches[0], watch.alone.batches[0].items, len(watch.tree.state.ids) - 2
    columns = [x[0].tolist() for x in (packed.ids_BS, packed.position_BS, packed.end_BS)]
    rows = [
        [place, f"`{name}`", columns[0][place], columns[1][place], columns[2][place]]
        for place, name in list(enumerate(names(watch, columns[0])))[first : first + 2 + SHOWN]
    ]
    update = watch.update
    numbers = facts(
        {
            "tokens of the row": len(columns[0]),
            "tokens of the paths, one by one": watch.alone.path_tokens,
            "predicted tokens (U)": len(packed.target_U),
            "trained tokens (K)": len(items.unique_K),
            "actions of the update": int(update.counts.turns),
            "trained tokens of the update": int(update.counts.tokens),
            "tokens that its rows hold": update.stored_tokens,
            "tokens of its paths": update.path_tokens,
        }
    )
    return grid(["place", "token", "id", "position", "end"], rows) + "\n" + numbers


def of_loss(watch: Watch) -> str:
    """Returns a table of the loss's inputs for each action before the step, and of the loss."""
    rows = []
    for i, _ in distinct(watch.tree):
        old, one = sum(watch.tree.turns[i].logprobs), watch.scores[0][i]
        values = (old, one.logprob, one.ratio, watch.credit.advantage[i], one.kl, one.loss)
        rows.append([f"`{watch.tree.turns[i].text}`", *(f"{value:.4f}" for value in values)])
    head = ["action", "log pi_old", "log pi", "w", "A", "k3", "loss"]
    loss: Any = watch.module.loss
    return grid(head, rows) + "\n" + facts({"e_low": loss.clip_low, "e_high": loss.clip_high, "beta": loss.kl_beta})


def of_step(watch: Watch) -> str:
    """Returns a table of the effect of the optimiser step on the actions and on the weights."""
    before, after = watch.scores
    rows = [
        [
            f"`{watch.tree.turns[i].text}`",
            f"{watch.credit.advantage[i]:+.4f}",
            *(f"{value:.4f}" for value in (before[i].logprob, after[i].logprob, before[i].reference)),
        ]
        for i, _ in distinct(watch.tree)
    ]
    moved = watch.weights[1] - watch.weights[0]
    numbers = facts(
        {
            "loss of the update": f"{watch.losses[0]:.6f}",
            "the same after the step": f"{watch.losses[1]:.6f}",
            "gradient norm": f"{watch.norm:.4f}",
            "clipped at": f"{watch.settings.update.clip_norm:g}",
            "learning rate": f"{watch.rate:.6f}",
            "trained weights": f"{moved.numel()}",
            "largest change of a weight": f"{float(moved.abs().max()):.6f}",
        }
    )
    return grid(["action", "A", "log pi before", "log pi after", "log pi_0"], rows) + "\n" + numbers


def distinct(tree: RolloutTree) -> list[tuple[int, int]]:
    """Returns the first turn of each action and how often it was sampled, the most frequent first."""
    found: dict[str, list[int]] = {}
    for i, turn in enumerate(tree.turns):
        found.setdefault(turn.text, []).append(i)
    return sorted(((places[0], len(places)) for places in found.values()), key=lambda one: (-one[1], one[0]))


def names(watch: Watch, ids: Sequence[int]) -> list[str]:
    """Returns tokens as the vocabulary writes them, escaped for a cell of a table."""
    found: list[str] = watch.policy.tokenizer.convert_ids_to_tokens(list(ids))
    return [cell(name) for name in found]


@program()
def main(arguments: list[str]) -> int:
    """Runs the program. The docstring of the module describes the exit status."""
    parser = options(__doc__)
    parser.add_argument("--write", action="store_true", help="put the numbers into docs/follow-one-batch.md")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = follow(Path(folder))
    for name, text in found.items():
        print(f"{name}\n\n{text}")
        if args.write:
            write_section(PAGE, text, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
