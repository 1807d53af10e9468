"""Runs a configuration from start to end: builds the parts, evaluates, chooses states, trains, evaluates, writes the result."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import get_object
from lightning import Callback
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig

from turnwise.config.follow import followed_settings
from turnwise.console import Terminal
from turnwise.engines.cache import give_back
from turnwise.env import environments_of
from turnwise.errors import Checked, Interrupted, Stopped
from turnwise.runs.page import print_summary, write_pages
from turnwise.runs.result_file import read_result, write_result
from turnwise.shipped import unknown_to
from turnwise.training.build_run import build_parts, build_player, prove_judge, trainer_of
from turnwise.training.candidates import read_candidates
from turnwise.training.checkpoints import last_checkpoint
from turnwise.training.diagnostics import Health
from turnwise.training.distributed import joined
from turnwise.training.evaluate import Evaluator, evaluate_between
from turnwise.training.frozen_buffer import frozen_groups
from turnwise.training.group_metrics import gate_counts
from turnwise.training.iterations import Iterations, Rollouts
from turnwise.training.policy_module import PolicyModule, export_policy, out_of_memory
from turnwise.training.profile import ProfileChoice, profile_costs
from turnwise.training.progress import Phases, label_of, progress_callback, started_loggers
from turnwise.training.recorder import Recorder
from turnwise.training.result import result_metrics, result_of


def run(cfg: DictConfig, began: float | None = None, env: Any = None) -> None:
    """Runs a configuration. Work that an earlier start of the run has finished is not repeated. ``began`` is the Unix time
    from which the run's duration counts, and ``env`` is the environment if it is ready. Raises ``Checked`` if all checks
    have passed and ``check`` is set.
    """
    began = time.time() if began is None else began
    prepare(int(cfg.seed))
    with ExitStack() as ends:
        ends.enter_context(explained_memory())
        served = getattr(get_object(cfg.engine._target_), "served", False)
        distributed = replace(ends.enter_context(joined(cfg.trainer)), served=served)
        first = distributed.first
        console = Terminal(stderr=True, quiet=not first)
        phases = ends.enter_context(Phases(console, label_of(cfg.name, cfg.seed)))
        loggers = ends.enter_context(started_loggers(cfg, first, phases.log))
        for line in followed_settings(cfg):
            phases.log(line)

        settings, parts, policy = build_parts(cfg, env=env)
        # Demonstrations are not samples of the policy, so imitation maximises their likelihood at temperature 1.
        sampled = parts.allocator is not None
        temperature = (settings.rollout.sampling.temperature or 1.0) if sampled else 1.0
        module = PolicyModule(policy.model, parts.loss, settings.update, settings.iterations, temperature, distributed)
        player = build_player(cfg, settings, parts, policy, phases.log)
        ends.callback(player.engine.shutdown)
        for line in opening_lines(cfg, parts.env):
            phases.log(line)

        with distributed.first_alone():
            candidates = read_candidates(settings, parts, policy.chat, phases)
        parts = parts.asking(candidates.steps, policy.chat)
        checkpoint = distributed.broadcast(last_checkpoint(settings.folder))
        callbacks: list[Callback] = []
        ask = partial(prove_judge, parts.judged, candidates.states, distributed, phases.log)
        if checkpoint is None:
            ask()
        else:  # a resumed run asks only if it has an iteration left
            callbacks.append(LambdaCallback(on_train_start=lambda *_: ask()))
        states = candidates.fitting(settings, parts, phases)
        if cfg.get("check"):
            raise Checked

        most, recorded = getattr(parts.reward, "most", None), settings.rollout.recorded
        recorder = Recorder(settings.folder, candidates.messages, recorded, first, loggers, most, began)
        health = Health(recorder, phases.log, settings.update.allow_empty)
        measure = Evaluator(settings, policy, player, module, candidates, phases)
        base = measure.base(cfg)
        recorder.write(0, "eval", result_metrics(base))

        one_turn = player.using(settings.rollout.sampling, max_turns=1)
        chosen = ProfileChoice(settings, parts, states, one_turn, module, phases).first()
        frozen = frozen_groups(settings, parts, chosen.states, player, module, phases)
        if frozen is not None:
            recorder.add({**frozen.cost, **gate_counts(frozen.trees.values(), to_the_end=True)})

        with phases.phase("train", settings.iterations) as advance:
            collection = Iterations(settings, parts, chosen.states, player, module, recorder, chosen.reprofile, frozen)
            data = Rollouts(collection, collection, settings.update.steps)
            module.evaluate = partial(evaluate_between, measure, recorder, collection)
            callbacks += [recorder, health]
            callbacks += [part for part in (parts.predictor, chosen.reprofile) if part is not None]
            callbacks += [*parts.callbacks, progress_callback(advance, recorder)]
            if distributed.world > 1 or SLURMEnvironment.detect():
                callbacks.append(own_signals())
            trainer = trainer_of(cfg, settings, callbacks, loggers)
            try:
                with named_signals():
                    trainer.fit(module, data, ckpt_path=str(checkpoint) if checkpoint else None, weights_only=True)
            finally:
                collection.halt()
                if parts.judge is not None:
                    parts.judge.close()

        after = measure.named("after")
        recorder.write(module.version, "eval", result_metrics(after))
        with phases.phase("report", 2) as advance:
            export_policy(module.model, policy.tokenizer, settings.folder, settings.policy, first)
            advance(1)
            if not first:
                return
            lost = measure.lost(base) + measure.lost(after)
            entries = recorder.result(chosen.verdicts, phases.seconds, lost) | profile_costs(settings.folder)
            entries |= {"pivots": dict(chosen.pivots)} if chosen.pivots else {}
            entries |= health.closing(parts.gate)
            write_result(result_of(cfg, parts.env.name, candidates, base, after, entries), settings.folder)
            report = write_pages(settings.folder)
            advance(1)
    print_summary(read_result(settings.folder), report, Terminal())


def prepare(seed: int) -> None:
    free_earlier_runs()
    quiet()
    L.seed_everything(seed, verbose=False)
    torch.use_deterministic_algorithms(True, warn_only=True)


def quiet() -> None:
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.raiseExceptions = False  # so that on a full disk only the run's own message appears
    warnings.filterwarnings("ignore", module="lightning|transformers|peft")


def free_earlier_runs() -> None:
    """Frees the memory of earlier runs in this process. A trainer, its module and a report's figures refer to each other in
    cycles, for which Python searches only after the number of objects has grown by a quarter: the memory of a sweep's
    runs would add up. What is left, mostly the libraries, is frozen, because every later search would visit it.
    """
    gc.unfreeze()
    give_back()
    gc.freeze()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def opening_lines(cfg: DictConfig, environment: Any) -> list[str]:
    file = cfg.data.file
    domain = Path(file).name if file is not None else environment.name
    lines = [
        f"{cfg.method} on {domain}, policy {cfg.policy.model}, seed {cfg.seed}: {cfg.trainer.max_epochs} "
        f"iterations of at most {cfg.rollout.states} states" + ("" if file else f", {cfg.eval.tasks} held-out tasks")
    ]
    parts = environments_of(environment).values() if file is None else ()
    warned = (unknown_to(cfg.policy.model, part.name, getattr(part, "level", None)) for part in parts)
    return [*lines, *filter(None, warned)]


@contextmanager
def explained_memory() -> Iterator[None]:
    try:
        yield
    except Stopped:
        raise
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise Stopped(
            f"out of memory ({(str(error).splitlines() or ['the allocation of an object'])[0]}): lower engine.memory_gb, "
            "allocator.group_size or rollout.states if this happened in sampling, or update.batch_tokens if it "
            "happened in training, and start the run with another name=.... The last checkpoint is kept"
        ) from error


def own_signals() -> Callback:
    """Returns a callback that restores the handlers of SIGTERM and SIGUSR1 that Lightning's ``fit`` replaces.

    Lightning's handler of SIGTERM calls a collective operation, while other processes may be in a different collective
    operation. It would also end the run when a requeued job gets SIGTERM, which the handler of submitit ignores.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    return LambdaCallback(on_train_start=lambda *_: [signal.signal(*pair) for pair in before.items()])


@contextmanager
def named_signals() -> Iterator[None]:
    """Raises ``Interrupted`` with the signal's name if a signal ends training. Lightning itself exits without a
    message, and after SIGTERM with status 0.
    """
    try:
        yield
    except SIGTERMException:
        raise Interrupted(signal.SIGTERM) from None
    except SystemExit:  # Lightning raises it after Ctrl-C and then ignores SIGINT; a second Ctrl-C must end the process
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise Interrupted(signal.SIGINT) from None
