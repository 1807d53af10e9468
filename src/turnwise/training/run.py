"""The parts of one run, built from its configuration, and the steps that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning import Callback
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import build
from turnwise.data.chat import ChatTokens
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.steps import TurnInContext
from turnwise.envs.environment import check_ready, environments_of
from turnwise.evaluation.suites import Evaluation, openings
from turnwise.models.hub import at_hand
from turnwise.models.policy import load_policy
from turnwise.models.shipped import unknown_to, weights_of
from turnwise.rollouts.predictors.online import OnlinePredictor, load_predictor
from turnwise.runs.identity import config_hash
from turnwise.training.call_format import call_format, check_readable, in_format
from turnwise.training.checkpoint import WholeCheckpointIO, newest
from turnwise.training.choice import Choice
from turnwise.training.collection import Collection
from turnwise.training.costs import run_costs
from turnwise.training.distributed import DistributedContext, environments
from turnwise.training.exactness import check_backbone, check_policy
from turnwise.training.export import export
from turnwise.training.frozen import Frozen, drawn, record
from turnwise.training.gate_savings import gate_counts
from turnwise.training.health import Health
from turnwise.training.judging import judged_of
from turnwise.training.measure import Measure, base_key
from turnwise.training.module import PolicyModule
from turnwise.training.outcome import domains, out_of_domain, provenance, summary
from turnwise.training.own import dialect_for
from turnwise.training.playing import player_of, spooled
from turnwise.training.present import StillThere
from turnwise.training.progress import Advance, Phases
from turnwise.training.recorder import Recorder
from turnwise.training.reprofile import Reprofile
from turnwise.training.signals import named_signals, own_signals
from turnwise.training.sources import Steps, Turns, hold_out, read_experts, starts_of
from turnwise.training.stream import Rollouts
from turnwise.training.verdicts import count_profile, verifier_result
from turnwise.types import Message, State


class Run:
    """The parts of one run, built once, and the steps that use them."""

    own: str | None = None  # name of the person's file, where no environment plays what is in it

    def __init__(
        self,
        cfg: DictConfig,
        phases: Phases,
        distributed: DistributedContext | None = None,
        loggers: Sequence[Logger] = (),
    ) -> None:
        self.cfg, self.phases, self.distributed = cfg, phases, distributed or DistributedContext()
        self.folder, self.seed = Path(cfg.paths.out), int(cfg.seed)
        self.began = any((self.folder / "checkpoints").glob("*.ckpt"))  # an earlier start has trained
        wanted = cfg.trainer.accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available()
        self.device = torch.device("cuda" if wanted else "cpu")  # measuring and profiling stand outside Lightning's fit
        named = ("data", "rollout", "update", "policy", "eval", "predictor")
        self.settings = {name: build(cfg, name) for name in named}
        self.parts = {name: build(cfg, name) for name in ("states", "reward", "judge", "advantage", "loss")}
        self.callbacks = [build(cfg, f"callbacks.{name}") for name, node in (cfg.callbacks or {}).items() if node]
        self.env = build(cfg, "env")
        check_ready(self.env)
        self.format = call_format(OmegaConf.select(cfg, "reward.format"), self.env, bool(self.settings["data"].file))
        policy, longest = self.settings["policy"], self.settings["rollout"].max_length
        self.source = at_hand(weights_of(policy.model), "policy.model")
        told = (unknown_to(policy.model, w.name, getattr(w, "level", None)) for w in environments_of(self.env).values())
        self.strange = [line for line in told if line]  # environments that the shipped policy was never trained on
        adapter = (policy.lora.r, policy.lora.alpha, policy.lora.dropout)
        model, tokenizer = load_policy(self.source, policy.dtype, *adapter, self.seed, policy.start, longest)
        check_policy(model, f"policy.model={policy.model}", Path(cfg.paths.cache))
        self.tokenizer, self.chat = tokenizer, ChatTokens(tokenizer)
        chosen = OmegaConf.select(cfg, "reward.format") or self.settings["data"].format
        self.dialect = dialect_for(self.settings["data"], self.parts["states"].source, self.chat, chosen)
        self.format = self.dialect.format if self.dialect else self.format
        self.parts["reward"] = in_format(self.parts["reward"], self.format)
        self.predictor = self._predictor()
        given = {}
        if self.predictor and (reward := self.parts["reward"]):
            given = {"value": self.predictor.values, "reward": self.predictor.success(reward)}
        self.parts |= {name: build(cfg, name, **given) for name in ("allocator", "gate")}
        update, suites, first = self.settings["update"], self.settings["eval"], self.distributed.first
        temperature = self.settings["rollout"].sampling.temperature or 1.0
        epochs = int(cfg.trainer.max_epochs)
        self.module = PolicyModule(model, self.parts["loss"], update, epochs, temperature, self.distributed)
        judging = self.settings["data"].judging(self.format)
        self.player = player_of(cfg, self.settings["rollout"], self.env, self.chat, self.source, phases.log, judging)
        self.engine = self.player.engine
        self.opening = openings(self.env, self.chat)
        self.demonstrations: Demonstrations | None = None
        self.steps: Mapping[str, TurnInContext] = {}  # for the judge
        trees, most = self.settings["rollout"].recorded, getattr(self.parts["reward"], "most", None)
        self.recorder = Recorder(self.folder, self.messages, trees=trees, writes=first, loggers=loggers, most=most)
        self.health = Health(self.recorder, self.folder, phases.log, update.allow_empty, first)
        self.measure = Measure(
            self.player,
            self.module,
            self.chat,
            self.opening,
            suites,
            self.folder,
            phases,
            self.device,
            self.distributed,
        )
        self.problems: Sequence[Any] = ()
        self.profiled: Mapping[str, float] = {}  # verdicts on the base policy's actions, by domain
        self.reprofile: Reprofile | None = None

    def _predictor(self) -> OnlinePredictor | None:
        if (settings := self.settings["predictor"]) is None:
            return None
        source = at_hand(weights_of(settings.model), "predictor.model")
        found = load_predictor(settings, source, self.tokenizer, self.seed, self.device)
        check_backbone(found.critic.backbone, f"predictor.model={settings.model}", Path(self.cfg.paths.cache))
        return found

    # -- where to act --------------------------------------------------------------------------------------------------

    def candidates(self) -> Sequence[State]:
        """Where the run may act: openings of train tasks, or every expert turn. Read first, for a bad file ends the run."""
        rule = self.parts["states"]
        if rule.source == "tasks":
            return starts_of(self.env, rule.count, self.seed, lambda task: self.opening(task)[1])
        data = self.settings["data"]
        with self.phases.phase("read", data.trajectories) as advance:
            cache = Path(self.cfg.paths.cache)
            self.demonstrations, self.problems, own = read_experts(
                data, self.env, self.chat, cache, self.seed, lambda done, total: advance(1), self.dialect
            )
        turns = Turns(self.demonstrations)
        self.steps = steps = Steps(turns)
        check_readable(self.parts["reward"], turns)
        for problem in self.problems:
            self.phases.log(f"left out: {problem}")
        if own is None or not own.dialogues:
            return turns
        settings, sampled = self.settings["eval"], self.parts["allocator"] is not None
        candidates, self.measure.held_out = hold_out(
            own, turns, steps, settings.tasks, self.settings["rollout"], sampled, self.phases.log
        )
        self.own = Path(data.file).name if own.only_dialogues else None
        self.measure.plays = settings.environment or (settings.environment is None and not self.own)
        return candidates

    def chosen(self, candidates: Sequence[State]) -> Sequence[State]:
        """The states that this run trains on, after a profile under the base policy where the rule asks for one."""
        rule = self.parts["states"]
        if not rule.k:
            return rule.select(candidates, {})
        choice = self.choice(candidates)
        profiles, kept = choice.profiled()
        self.profiled = count_profile(profiles, candidates)
        if rule.reprofile is not None:
            tell = self.phases.log
            self.reprofile = Reprofile(
                rule.reprofile, candidates, kept, choice, self.settings["rollout"], self.seed, tell
            )
        return kept

    def choice(self, candidates: Sequence[State]) -> Choice:
        """Chooses among them by a profile of the policy as it then is."""
        local = self.player.using(self.settings["rollout"].sampling, max_turns=1)
        of_run = (self.device, self.folder, self.seed, self.phases, self.distributed)
        return Choice(self.parts["states"], candidates, local, self.module, *of_run)

    def messages(self, state: State) -> Sequence[Message]:
        """The history of a state as chat messages, for records."""
        found = self.demonstrations and self.demonstrations.named(state.trajectory or "")
        if not found:
            return self.opening(state.task)[0]
        acts = [i for i, message in enumerate(found.messages) if message["role"] == "assistant"]
        return found.messages[: acts[state.turn]]

    def measured_base(self) -> Evaluation:
        """The base policy's evaluation; what an earlier run from the same base has measured is read back."""
        settings = self.settings
        environment = OmegaConf.to_container(self.cfg.env, resolve=True)
        world = {"env": environment, "engine": self.cfg.engine._target_}  # engines draw differently
        folders = [path for path in (self.source, settings["policy"].start) if path]
        held_out = self.measure.held_out.digest if self.measure.held_out else ""
        key = base_key(folders, settings["policy"], world, settings["eval"], settings["rollout"].sampling, held_out)
        return self.measure.base(Path(self.cfg.paths.cache), key)

    # -- train ---------------------------------------------------------------------------------------------------------

    def frozen(self, states: Sequence[State]) -> Frozen | None:
        """The groups that every update draws from, played by the base policy; None where each iteration plays its own."""
        if (count := self.settings["rollout"].frozen) is None:
            return None
        picked, parts = drawn(states, count, self.seed), (self.parts["allocator"], self.parts["gate"])
        key, folder = (self.seed, "frozen"), self.folder / "buffer"
        with self.phases.phase("record", count) as advance:
            self.module.to(self.device)
            begin = partial(self.module.sync_weights, self.engine)
            buffer = record(self.player, picked, *parts, folder, key, begin, self.distributed, advance)
        self.recorder.paid({**buffer.cost, **gate_counts(buffer.trees.values(), to_the_end=True)})
        return buffer

    def fit(self, states: Sequence[State], first: Sequence[Callback] = ()) -> None:
        """Lightning's Trainer over iterations, with ``first`` before other callbacks; goes on from the last checkpoint."""
        frozen = self.frozen(states)
        last = newest(self.folder / "checkpoints", self.phases.log) if self.distributed.first else None
        checkpoint = self.distributed.broadcast(last)
        epochs, every = int(self.cfg.trainer.max_epochs), self.settings["eval"].every
        kept = spooled(self.player, self.cfg, self.distributed, self.phases.log)
        with self.phases.phase("train", epochs) as advance, kept as player:
            learners = [self.predictor] if self.predictor else []
            callbacks = [*first, StillThere(self.folder), self.recorder, self.health, *learners]
            callbacks += [
                *([self.reprofile] if self.reprofile else []),
                *self.callbacks,
                Advance(advance, self.recorder),
            ]
            collection = Collection(
                states,
                self.parts,
                self.settings["rollout"],
                self.settings["update"],
                player,
                self.module,
                self.recorder,
                self.seed,
                judged_of(self.parts, self.steps, self.chat, self.format),
                learners,
                self.distributed,
                epochs,
                self.reprofile,
                frozen,
            )
            steps, evaluate = self.settings["update"].steps, partial(self.evaluate_during, collection)
            data = Rollouts(collection, evaluate, collection, steps)
            trainer = instantiate(
                self.cfg.trainer,
                callbacks=[*callbacks, *own_signals(self.distributed.world)],
                logger=[*self.recorder.loggers] or False,
                plugins=[WholeCheckpointIO(), *environments()],
                use_distributed_sampler=False,  # what is whose is decided by the collection
                default_root_dir=str(self.folder),
                check_val_every_n_epoch=every or None,
                limit_val_batches=1 if every else 0,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            try:
                with named_signals():
                    trainer.fit(self.module, data, ckpt_path=str(checkpoint) if checkpoint else None, weights_only=True)
                self.recorder.check()
            finally:
                collection.halt()
                if self.parts["judge"] is not None:
                    self.parts["judge"].close()

    def evaluate_during(self, collection: Collection) -> None:
        """In the middle of training: one line of metrics. Nothing at its end, where the evaluation after training follows."""
        trainer = self.module.trainer
        if trainer.current_epoch + 1 == trainer.max_epochs:
            return
        collection.settle()
        with self.recorder.aside():
            metrics = summary(self.measure())
        self.recorder.write(self.module.version, "eval", metrics)

    # -- leave behind --------------------------------------------------------------------------------------------------

    def export(self) -> None:
        """The policy, as any Hugging Face program loads it."""
        export(self.module.model, self.tokenizer, self.folder, self.settings["policy"], self.distributed.first)

    def result(self, base: Evaluation, after: Evaluation, seconds: float = 0.0) -> dict[str, Any]:
        alone = self.measure.plays and not self.measure.held_out  # the environment is the headline then
        own = None if alone else self.own
        return {
            "method": self.cfg.method,
            "env": own or self.env.name,
            "scale": self.cfg.scale,
            "seed": self.seed,
            "name": self.cfg.name,
            **domains(base, after, own is not None),
            "ood": out_of_domain(base, after),
            **run_costs(self.recorder.counters, self.phases.seconds, self.folder),
            "wall_seconds": round(seconds, 1),
            "bad_trajectories": len(self.problems),
            **({"judge": self.recorder.judge} if self.recorder.judge else {}),
            **self.health.closing(self.parts["gate"]),
            "verifier": verifier_result(self.recorder.verdicts, self.profiled),
            "config_hash": config_hash(self.cfg),
            **provenance(),
        }
