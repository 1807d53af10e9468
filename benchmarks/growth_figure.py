"""Plots the lead over peers against the size of the model, for benchmarks/growth.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMES = {
    "x_generate": "rollouts: transformers generate",
    "x_continuous": "rollouts: continuous batching",
    "x_vllm_cpu": "rollouts: vLLM's CPU build",
    "x_padded": "updates: the padded update",
    "x_per_turn": "profiling: each turn prefilled anew",
}
DASHES = {"float32": "-", "bfloat16": "--"}
TICKS = (0.5, 1, 2, 3, 4, 6, 8, 12)


def figure(found: Mapping[str, Mapping[str, Any]], place: Path) -> None:
    """Writes a plot with a line for each peer and number format; at 1, Turnwise is as fast as the peer."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(figsize=(9, 4))
    for number, (key, label) in enumerate(NAMES.items()):
        for dtype, dashes in DASHES.items():
            points = [
                (millions(name), row[key])
                for name, row in found.items()
                if name.endswith(f"/{dtype}") and row.get(key) is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), dashes, marker="o", color=f"C{number}", label=f"{label}, {dtype}")
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="million parameters", ylabel="times as fast as the peer")
    sizes = sorted({millions(name) for name in found if "/" in name})
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))  # beside the lines, which fill the axes
    place.parent.mkdir(parents=True, exist_ok=True)
    drawn.tight_layout()
    drawn.savefig(place, metadata={"Date": None})
    pyplot.close(drawn)


def millions(name: str) -> float:
    """Returns the number of millions with which a name such as ``20m/float32`` begins; 1 for a dry run."""
    size = name.partition("/")[0].removesuffix("m")
    return float(size) if size.isdigit() else 1.0
