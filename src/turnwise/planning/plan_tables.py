"""Renders plans and simulations of runs as text tables."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.planning.gpus import Gpu
from turnwise.planning.missing_inputs import PAGE, steps_in
from turnwise.planning.plan import RunPlan
from turnwise.planning.simulation import Simulation
from turnwise.planning.simulation_assumptions import Assumptions
from turnwise.reports.tables import Table

PARTS = (
    *("weights", "earlier", "gradients", "optimiser", "copy", "predictor", "cache", "drawing", "activations", "logits"),
    "peak",
)
WHOLE = ("sampled", "trained", "profile", "evaluation")
KINDS = ("sampling", "forward", "backward", "reference", "predictor", "profile", "evaluation")
HOURS = ("sampling", "training", "predictor", "profile", "evaluation", "in all")


def plan_tables(title: str, plans: Mapping[str, RunPlan], gpu: Gpu) -> list[Table]:
    """Returns three tables with one line for each planned run: memory, tokens, and FLOPs with GPU-hours."""
    memory = Table(f"{title}: GB on a GPU", ["row", "model", "parameters, B", "trained, M", *PARTS], [])
    tokens = Table(
        "Tokens",
        ["row", "steps", "a step: rollouts", "turns", "sampled", "trained", "stored", *(f"in all: {w}" for w in WHOLE)],
        [],
    )
    work = Table(
        f"Work on {gpu.name}: {gpu.peak_tflops:g} TFLOP/s at {gpu.utilisation:.0%}, {gpu.bandwidth_tb_s:g} TB/s at "
        f"{gpu.bandwidth_utilisation:.0%}",
        ["row", *(f"PFLOP: {kind}" for kind in KINDS), "GPUs", *(f"GPU-hours: {kind}" for kind in HOURS)],
        [],
    )
    for name, one in plans.items():
        shape, held, taken, step, beside = one.shape, one.memory, one.work, one.tokens, one.around
        sizes = held.parts() if held else {}
        memory.rows.append(
            [name, one.model, f"{shape.parameters / 1e9:.2f}" if shape else "-"]
            + [f"{shape.trained / 1e6:,.1f}" if shape else "-"]
            + [_short(sizes[part] / 1e9) if sizes else "-" for part in PARTS]
        )
        counts = [step.rollouts, step.turns, step.sampled, step.trained, step.stored]
        counts += [one.played * step.sampled, one.steps * step.trained, beside.profiled, beside.evaluated]
        tokens.rows.append([name, str(one.steps), *map(_count, counts)])
        if taken is None:  # None if the policy's shape is unknown
            work.rows.append([name, *["-"] * len(KINDS), str(one.gpus), *["-"] * len(HOURS)])
            continue
        hours = taken.gpu_hours
        trained = hours["forward"] + hours["backward"] + hours["reference"]
        beyond = [hours[kind] for kind in ("predictor", "profile", "evaluation")]
        work.rows.append(
            [name, *(_short(taken.flops[kind] / 1e15) for kind in KINDS), str(one.gpus)]
            + [_short(value) for value in (hours["sampling"], trained, *beyond, hours["total"])]
        )
    return [memory, tokens, work]


def notes(plans: Mapping[str, RunPlan], cannot: Mapping[str, str]) -> list[str]:
    """Returns notes about the planned runs, one per line: where the assumed lengths come from, which inputs are
    missing, and which sections of docs/cluster.md explain how to get these inputs. Runs with equal notes share a line.

    Args:
        plans: name of a run -> its plan.
        cannot: name of a run without a plan -> the reason why the run cannot be planned.
    """
    told: dict[str, list[str]] = {}
    for name, one in plans.items():
        known = one.lengths
        says = ", ".join(
            f"{key} {getattr(known, key):.0f} ({known.source[key]})"
            for key in ("opening", "reply", "observation", "demonstrated", "episode")
            if key in known.source
        )
        told.setdefault(f"Lengths (demonstrated and episode in turns, others in tokens): {says}.", []).append(name)
    for name, reason in cannot.items():
        told.setdefault(f"Missing: {reason}", []).append(name)
    for name, one in plans.items():
        for reason in one.missing:
            told.setdefault(f"Missing: {reason}", []).append(name)
    for name in dict.fromkeys((*plans, *cannot)):
        own = plans[name].missing if name in plans else ()
        if steps := steps_in((cannot.get(name, ""), *own)):
            told.setdefault(f"Steps of {PAGE}: {', '.join(f'#{step}' for step in steps)}", []).append(name)
    lines = [f"{text} [{', '.join(names)}]" for text, names in told.items()]
    return sorted(lines, key=lambda line: line.startswith("Missing") + 2 * line.startswith("Steps"))


def simulated_table(name: str, simulation: Simulation) -> Table:
    """Returns a table of a simulation with one line for each schedule. The last column is the fraction of tokens that
    the gate saves, compared with a run without a gate.
    """
    assumed, site = simulation.assumed, simulation.assumed.site
    head = ["schedule", "iteration, s", "lower bound, s", "iteration / bound"]
    head += ["hours", "GPU-hours", "GPUs busy", "tokens decoded, M", "cut by the gate"]
    title = f"{name}, simulated: {site.gpus} GPUs, {assumed.workload.groups} groups of {assumed.workload.size}"
    table = Table(title, head, [])
    for row in simulation.rows:
        played = row.played
        table.rows.append(
            [
                str(row.schedule),
                f"{played.iteration:,.1f}",
                f"{row.bound:,.1f}",
                f"{played.iteration / row.bound:.2f}",
                f"{row.hours:,.1f}",
                f"{row.gpu_hours:,.0f}",
                f"{row.busy:.0%}",
                f"{played.decoded / 1e6:,.2f}",
                f"{1 - played.decoded / row.asked:.1%}",
            ]
        )
    return table


def resting(name: str, assumed: Assumptions) -> list[str]:
    """Returns a heading and one line of text for each assumption of a simulation."""
    lines = [f"Assumptions about {name}; --assume NAME=VALUE changes one:"]
    for key, value in assumed.values.items():
        told = ",".join(f"{n:g}:{rate:g}" for n, rate in value) if isinstance(value, tuple) else f"{value:.5g}"
        lines.append(f"  {key}={told} ({assumed.why[key]})")
    return lines


def _count(value: float) -> str:
    return f"{value / 1e6:,.2f} M" if value >= 1e6 else f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
