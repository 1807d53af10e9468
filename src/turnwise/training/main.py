"""Runs a configuration: builds the parts, reads the candidate states, evaluates the base policy, chooses states,
trains, evaluates the trained policy, exports its weights, and writes the result and the report.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from lightning import Callback
from omegaconf import DictConfig

from turnwise.console import Terminal
from turnwise.reports.run_report import write_pages
from turnwise.reports.terminal_summary import print_summary
from turnwise.runs.result_file import read_result, write_result
from turnwise.training.build_parts import build_parts, player_of, spooled, trainer_of
from turnwise.training.check_judge import Proof
from turnwise.training.checkpoint import newest
from turnwise.training.collection import Collection
from turnwise.training.costs import run_costs
from turnwise.training.datamodule import Rollouts
from turnwise.training.distributed import joined, label_of
from turnwise.training.evaluate import EvaluateBetween, Measure
from turnwise.training.export import export
from turnwise.training.first_lines import opening_lines, untrained_lines
from turnwise.training.folder_still_there import StillThere
from turnwise.training.frozen_buffer import frozen_groups
from turnwise.training.gate_savings import gate_counts
from turnwise.training.health import Health
from turnwise.training.live_page import Live
from turnwise.training.loggers import started
from turnwise.training.module import PolicyModule
from turnwise.training.out_of_memory import explained_memory
from turnwise.training.prepare_process import prepare
from turnwise.training.progress import Advance, Phases
from turnwise.training.provenance import command
from turnwise.training.read_candidates import read_candidates
from turnwise.training.recorder import Recorder
from turnwise.training.run_result import result_of, summary
from turnwise.training.signals import named_signals, own_signals
from turnwise.training.state_choice import Choice

PHASES = ["read", "evaluate base", "profile", "record", "train", "evaluate after", "report"]
TWINS = {"evaluate after": "evaluate base"}
SERVED = {"turnwise.engines.vllm.VllmEngine"}  # engines that run in servers, outside the run's processes


def run(cfg: DictConfig, began: float | None = None) -> None:
    """Runs a configuration. Work that an earlier start of the run has finished is not repeated. The duration of the run
    is counted from ``began``, a Unix time (None: from now on).
    """
    prepare(int(cfg.seed))
    with ExitStack() as ends:
        ends.enter_context(explained_memory())
        distributed = ends.enter_context(joined(cfg.trainer)).sampling(served=cfg.engine._target_ in SERVED)
        live = ends.enter_context(Live(Path(cfg.paths.out), command(resumes=True), distributed.first, began=began))
        console = Terminal(stderr=True, quiet=not distributed.first)
        phases = ends.enter_context(Phases(PHASES, TWINS, console, label_of(cfg.name, cfg.seed), live))
        loggers = ends.enter_context(started(cfg, distributed.first, phases.log))

        settings, parts, policy = build_parts(cfg)
        # Demonstrations are not samples of the policy, so imitation maximises their likelihood at temperature 1.
        sampled = parts.allocator is not None
        temperature = (settings.rollout.sampling.temperature or 1.0) if sampled else 1.0
        module = PolicyModule(policy.model, parts.loss, settings.update, settings.iterations, temperature, distributed)
        player = player_of(cfg, settings, parts, policy, phases.log)
        ends.callback(player.engine.shutdown)
        phases.log("\n".join(opening_lines(cfg, parts.env)))

        with distributed.first_alone():
            candidates = read_candidates(settings, parts, policy.chat, phases)
        parts = parts.asking(candidates.steps, policy.chat)
        proof = Proof(parts.judged, candidates.states, distributed, phases.log)
        if not any((settings.folder / "checkpoints").glob("*.ckpt")):  # a resumed run asks the judge in ``trainer.fit``
            proof.ask()
        for line in () if candidates.own else untrained_lines(settings.policy.model, parts.env):
            phases.log(line)
        states = candidates.fitting(settings, parts, phases)

        most = getattr(parts.reward, "most", None)
        recorded, first = settings.rollout.recorded, distributed.first
        recorder = Recorder(settings.folder, candidates.messages, recorded, first, loggers, most)
        health = Health(recorder, settings.folder, phases.log, settings.update.allow_empty, first)
        measure = Measure(settings, policy, player, module, candidates, phases)
        base = measure.base(cfg)
        recorder.write(0, "eval", summary(base))

        one_turn = player.using(settings.rollout.sampling, max_turns=1)
        chosen = Choice(settings, parts, states, one_turn, module, phases).first()
        frozen = frozen_groups(settings, parts, chosen.states, player, module, phases)
        if frozen is not None:
            recorder.add({**frozen.cost, **gate_counts(frozen.trees.values(), to_the_end=True)})

        checkpoint = distributed.broadcast(newest(settings.folder / "checkpoints", phases.log) if first else None)
        kept = spooled(player, cfg, distributed, phases.log)
        with phases.phase("train", settings.iterations) as advance, kept as sampling:
            collection = Collection(
                settings, parts, chosen.states, sampling, module, recorder, chosen.reprofile, frozen
            )
            data = Rollouts(collection, collection, settings.update.steps)
            module.evaluate = EvaluateBetween(measure, recorder, collection)
            callbacks: list[Callback] = [proof, StillThere(settings.folder), recorder, health]
            callbacks += [part for part in (parts.predictor, chosen.reprofile) if part is not None]
            callbacks += [*parts.callbacks, Advance(advance, recorder), *own_signals(distributed.world)]
            trainer = trainer_of(cfg, settings, callbacks, loggers)
            try:
                with named_signals():
                    trainer.fit(module, data, ckpt_path=str(checkpoint) if checkpoint else None, weights_only=True)
                recorder.check()
            finally:
                collection.halt()
                if parts.judge is not None:
                    parts.judge.close()

        after = measure.named("after")
        recorder.write(module.version, "eval", summary(after))
        with phases.phase("report", 2) as advance:
            export(module.model, policy.tokenizer, settings.folder, settings.policy, first)
            advance(1)
            if not first:
                return
            lost = measure.lost(base) + measure.lost(after)
            entries = run_costs(recorder.counters, phases.seconds, settings.folder, lost)
            entries |= recorder.result(chosen.verdicts)
            entries |= {"pivots": dict(chosen.pivots)} if chosen.pivots else {}
            entries |= health.closing(parts.gate) | {"wall_seconds": round(live.seconds, 1)}
            write_result(result_of(cfg, parts.env.name, candidates, base, after, entries), settings.folder)
            report = write_pages(settings.folder)
            advance(1)
    print_summary(read_result(settings.folder), report, Terminal())
