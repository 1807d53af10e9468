"""One run: build the parts, measure the base, choose the states, fit, measure again, write the result and the report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from omegaconf import DictConfig

from turnwise.algo.states.lazy import LazyStates
from turnwise.console import Terminal
from turnwise.reports.pages import write_pages
from turnwise.reports.terminal import print_summary
from turnwise.runs.result import read_result, write_result
from turnwise.training.distributed import joined, label_of
from turnwise.training.judging import Proof, judged_of
from turnwise.training.live import Live
from turnwise.training.loggers import started
from turnwise.training.memory import explained_memory
from turnwise.training.opening import opening_lines
from turnwise.training.outcome import command, summary
from turnwise.training.process import prepare
from turnwise.training.progress import Phases
from turnwise.training.run import Run
from turnwise.training.sources import playable, trainable

PHASES = ["read", "evaluate base", "profile", "record", "train", "evaluate after", "report"]
TWINS = {"evaluate after": "evaluate base"}
SERVED = {"turnwise.engines.vllm.engine.VllmEngine"}  # engines outside the run's processes


def run(cfg: DictConfig) -> None:
    """Run ``cfg`` to its result; what an earlier start has finished is not done again."""
    prepare(int(cfg.seed))
    with ExitStack() as ends:
        ends.enter_context(explained_memory())
        distributed = ends.enter_context(joined(cfg.trainer))
        distributed = distributed.sampling(served=cfg.engine._target_ in SERVED)
        live = ends.enter_context(Live(Path(cfg.paths.out), command(resumes=True), distributed.first))
        console = Terminal(stderr=True, quiet=not distributed.first)
        phases = ends.enter_context(Phases(PHASES, TWINS, console, label_of(cfg.name, cfg.seed), live))
        loggers = ends.enter_context(started(cfg, distributed.first, phases.log))
        job = Run(cfg, phases, distributed, loggers)
        ends.callback(job.engine.shutdown)
        phases.log("\n".join(opening_lines(cfg, job.env)))
        with distributed.first_alone():
            candidates = job.candidates()
        proof = Proof(judged_of(job.parts, job.steps, job.chat, job.format), candidates, distributed, phases.log)
        if not job.began:
            proof.ask()
        for line in () if job.own else job.strange:
            phases.log(line)
        if job.parts["allocator"] is not None:
            candidates = playable(candidates, job.settings["rollout"], phases.log)
        elif isinstance(candidates, LazyStates):
            candidates = trainable(candidates, job.settings["rollout"], phases.log)
        base = job.measured_base()
        job.recorder.write(0, "eval", summary(base))
        job.fit(job.chosen(candidates), [proof])
        after = job.measure.named("after")
        job.recorder.write(job.module.version, "eval", summary(after))
        with phases.phase("report", 2) as advance:
            job.export()
            advance(1)
            if not distributed.first:
                return
            write_result(job.result(base, after, live.seconds), job.folder)
            report = write_pages(job.folder)
            advance(1)
    print_summary(read_result(job.folder), report, Terminal())
