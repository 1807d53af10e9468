"""Compares a whole iteration of PivotRL (collect, reward, credit, pack, update) with TRL's GRPOTrainer.

Both train the same LoRA policy on the same expert turns, with the same group size, sampling settings, functional
verifier and weight of the KL to the base policy. Both make one optimiser step from the same number of samples.

python benchmarks/iteration.py
python benchmarks/iteration.py --states 2 --group 2 --trajectories 2 --rounds 1
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning as L
from omegaconf import DictConfig
from transformers import TrainerCallback

from common import (
    ROOT,
    Contender,
    Round,
    alternate,
    chosen,
    contender_details,
    contender_rows,
    finish,
    options,
    policy_of,
    positive,
    prepare,
    ratio,
    show,
    tokenizer_of,
)
from turnwise.config.schema import compose_config
from turnwise.console import Terminal
from turnwise.methods.states import Batches
from turnwise.rollouts.player import Player
from turnwise.training.build_run import BasePolicy, Parts, Settings, build_parts, player_of
from turnwise.training.candidates import Candidates, read_candidates
from turnwise.training.iterations import Collection, Rollouts
from turnwise.training.policy_module import PolicyModule
from turnwise.training.profile import Choice
from turnwise.training.progress import Phases
from turnwise.training.recorder import Recorder
from turnwise.types import State
from work import Work


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    absent: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        cfg = configuration(args, Path(folder))
        with Phases(Terminal(quiet=True)) as phases:
            run = Run.of(cfg, phases)
            states = run.states(phases)
        if len(states) < args.states:
            raise SystemExit(f"only {len(states)} expert turns are kept: raise --trajectories, or set --keep all")
        tasks = Batches(states, args.seed, args.states)(0)
        shares: list[float] = []
        contenders = [ours(run, tasks, cfg, shares)]
        if find_spec("trl") is None:
            absent["x_trl"] = "trl: not installed; `make test` installs it"
        elif chosen(args, "trl"):
            contenders.append(trl(args, run, tasks, cfg, device))
        alternate(contenders, args.rounds)
    ratios = {"x_trl": ratio(contenders[0].rate, contenders[1].rate) if len(contenders) > 1 else None}
    title = f"Iterations of PivotRL: {args.states} expert turns, G = {args.group}, {args.shape}"
    header = ["", "seconds", "samples/s", "slowest to fastest", "ours is"]
    notes = [f"{c.name}: {c.note}" for c in contenders] + [f"not measured: {reason}" for reason in absent.values()]
    show(title, header, contender_rows(contenders, "turnwise"), notes)
    details = {
        "absent": absent,
        "unit": "samples",
        "rollout_share": round(statistics.median(shares), 3),
        **contender_details(contenders),
    }
    finish("iteration", args, ratios, details)


def configuration(args: argparse.Namespace, folder: Path) -> DictConfig:
    """Returns the configuration of ``method=pivotrl``, composed as by the main program, at this benchmark's sizes."""
    overrides = [
        "method=pivotrl",
        "name=benchmark",
        f"paths.out={folder / 'run'}",
        f"paths.cache={folder / 'cache'}",
        f"seed={args.seed}",
        f"data.trajectories={args.trajectories}",
        f"states.keep={args.keep}",
        f"rollout.states={args.states}",
        "rollout.trajectories=null",
        f"allocator.group_size={args.group}",
        "update.learning_rate=1e-6",  # so small that both trainers sample from nearly the same policy in every round
    ]
    if args.device == "cuda":
        overrides.append("trainer=gpu")
    return compose_config(overrides, ROOT / "conf")


class Clock(L.Callback):
    """Records the seconds of Lightning's epochs. One epoch is one iteration."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds.append(time.perf_counter() - self._began)


@dataclass(frozen=True, slots=True)
class Run:
    """The parts of a run, built as ``turnwise.training.loop`` builds them."""

    settings: Settings
    parts: Parts
    policy: BasePolicy
    module: PolicyModule
    player: Player
    candidates: Candidates

    @classmethod
    def of(cls, cfg: DictConfig, phases: Phases) -> Run:
        settings, parts, policy = build_parts(cfg)
        temperature = settings.rollout.sampling.temperature or 1.0
        module = PolicyModule(policy.model, parts.loss, settings.update, settings.iterations, temperature)
        player = player_of(cfg, settings, parts, policy, phases.log)
        return cls(settings, parts, policy, module, player, read_candidates(settings, parts, policy.chat, phases))

    def states(self, phases: Phases) -> Sequence[State]:
        one_turn = self.player.using(self.settings.rollout.sampling, max_turns=1)
        return Choice(self.settings, self.parts, self.candidates.states, one_turn, self.module, phases).first().states


def ours(run: Run, tasks: list[State], cfg: DictConfig, shares: list[float]) -> Contender:
    """Measures the run's own parts, including the recorder.

    For each iteration, the fraction of the time that rollouts took is appended to ``shares``.
    """
    recorder = Recorder(run.settings.folder, run.candidates.messages, run.settings.rollout.recorded)

    def iteration(number: int) -> Round:
        clock = Clock()
        settings = replace(run.settings, seed=run.settings.seed + number)
        collection = Collection(settings, run.parts, tasks, run.player, run.module, recorder)
        trainer = L.Trainer(
            accelerator=cfg.trainer.accelerator,
            devices=1,
            precision=cfg.trainer.precision,
            max_epochs=1,
            logger=False,
            callbacks=[clock],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        run.player.forget()
        before, spent = run.player.tally.turns, recorder.counters["rollout_seconds"]
        trainer.fit(run.module, Rollouts(collection, steps=settings.update.steps))
        shares.append((recorder.counters["rollout_seconds"] - spent) / clock.seconds[0])
        return Round(clock.seconds[0], run.player.tally.turns - before)

    return Contender("turnwise", iteration, lambda: iteration(-1), "Lightning epoch: collect, pack, one optimiser step")


class StepClock(TrainerCallback):
    """Records the seconds of TRL's optimiser steps. A step's first micro-batch includes its generation."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def trl(args: argparse.Namespace, run: Run, tasks: list[State], cfg: DictConfig, device: Any) -> Contender:
    """Measures GRPOTrainer on the states ``tasks``: one optimiser step from states x group samples of one call."""
    from peers_trl import single_turn_trainer

    tokenizer, work = tokenizer_of(args.shape), Work.of(tokenizer_of(args.shape), 1, 1, 30, 24, 4096, args.seed)
    prompts = [tokenizer.decode(list(state.ids)) for state in tasks]
    for state, prompt in zip(tasks, prompts, strict=True):
        if tuple(tokenizer(prompt)["input_ids"]) != state.ids:
            raise RuntimeError(
                f"state {state.id}: the tokens of its text differ from our tokens, so the tasks would differ"
            )
    verdict = verifier(run, tasks, work)
    policy = run.settings.policy
    loss: Any = run.parts.loss
    model = policy_of("tiny", policy.dtype, device, policy.lora.r, policy.lora.alpha)
    model.load_state_dict(run.module.model.state_dict())
    model.get_base_model().set_attn_implementation("sdpa")
    samples = args.states * args.group
    rows = max(n for n in range(1, args.trl_rows + 1) if samples % n == 0)
    passes = samples // rows
    trainer = single_turn_trainer(
        model,
        prompts,
        verdict,
        run.settings.rollout.sampling,
        args.group,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        beta=loss.kl_beta,
        learning_rate=run.settings.update.learning_rate,
        max_grad_norm=run.settings.update.clip_norm,
        lr_scheduler_type="constant",
        max_steps=1,
        seed=args.seed,
    )
    clock = StepClock()
    trainer.add_callback(clock)

    def step(number: int) -> Round:
        trainer.train()
        return Round(clock.seconds[-1], samples)

    return Contender(
        "trl", step, lambda: step(-1), f"TRL's GRPOTrainer.train: generate, reward, {passes} passes of {rows} rows"
    )


def verifier(run: Run, tasks: list[State], work: Work) -> Callable[..., list[float]]:
    """Returns the functional verifier as TRL's reward function.

    As in Turnwise's player, the session at each state is opened only once.
    """
    sessions = [run.parts.env.replay(state.task, state.actions) for state in tasks]

    def reward(completion_ids: list[list[int]], number: list[int], **_: Any) -> list[float]:
        known: dict[tuple[int, str], float] = {}
        rewards = []
        for ids, n in zip(completion_ids, number, strict=True):
            text = work.chat.decode(ids)
            if (n, text) not in known:
                known[n, text] = float(run.parts.env.accepts(sessions[n], text, tasks[n].expert))
            rewards.append(known[n, text])
        return rewards

    return reward


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("--states", type=positive, default=12, help="number of expert turns of an iteration")
    add("--group", type=positive, default=16, help="number of samples of each turn: G")
    add("--trajectories", type=positive, default=24, help="number of demonstrations from which the turns are taken")
    add("--keep", choices=["adv", "mixed", "all"], default="mixed", help="which profiled turns are used (states.keep)")
    add("--trl-rows", type=positive, default=64, help="TRL: number of rows in one pass of its update")
    return parser


if __name__ == "__main__":
    main()
