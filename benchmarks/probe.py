"""Measures the cost of probing a model when it is loaded: python benchmarks/probe.py

A model of a published shape with random weights and all of its layers is probed as a run probes its policy
(``rollouts.probe``). Layers above the first ``--layers`` share the weights of the first layer, so that the model fits
into memory; the probe never computes them. If all layers are of one kind, the probe computes two layers. Then the
highest layer with weights of its own is marked as another kind, so that all layers below it are computed: the
difference of the times is the cost of the additional layers.

In bfloat16 a model with large logits is probed as well. Its rounding errors exceed the limit, so that it is measured
again in float32. Seconds are processor time and wall-clock time. The last line is one JSON object.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from common import finish, positive, program, show
from shapes import SHAPES, config_of
from turnwise.models.attention import use_tree_attention
from turnwise.rollouts.probe import probe

LOUD = 30.0  # factor on the last norm, which makes logits about as large as those of a trained model
ROWS = 1024  # rows of the large matrix product


def built(shape: str, layers: int) -> Any:
    """Returns the model in float32. Layers from ``layers`` on share the weights of the first layer."""
    config = config_of(shape)
    whole, kinds = config.num_hidden_layers, config.layer_types
    config.num_hidden_layers, config.layer_types = layers, kinds[:layers]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    first = model.model.layers[0]
    for number in range(layers, whole):
        layer = copy.deepcopy(first, {id(weight): weight for weight in first.parameters()})
        layer.self_attn.layer_idx = number
        model.model.layers.append(layer)
    model.config.num_hidden_layers, model.config.layer_types = whole, kinds
    return use_tree_attention(model)


def probed(model: Any, rounds: int) -> dict[str, Any]:
    """Returns the median seconds of processor time and wall-clock time, and the seconds of every round."""
    cpu, wall = [], []
    for _ in range(rounds):
        began = time.process_time(), time.perf_counter()
        found = probe(model)
        cpu.append(time.process_time() - began[0])
        wall.append(time.perf_counter() - began[1])
        if found is not None:
            raise SystemExit(f"the model is not exact: {found}")
    return {
        "cpu_seconds": round(median(cpu), 3),
        "wall_seconds": round(median(wall), 3),
        "rounds": [[round(a, 3), round(b, 3)] for a, b in zip(cpu, wall, strict=True)],
    }


def rate(dtype: torch.dtype, config: Any) -> float:
    """Returns the operations per second of a large product with a weight of this shape.

    The seconds are the processor time of all threads together.
    """
    x = torch.randn(ROWS, config.hidden_size).to(dtype)
    weight = torch.randn(config.intermediate_size, config.hidden_size).to(dtype)
    x @ weight.T
    taken = []
    for _ in range(5):
        began = time.process_time()
        x @ weight.T
        taken.append(time.process_time() - began)
    return 2.0 * x.shape[0] * weight.numel() / min(taken)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = program(__doc__)
    parser.add_argument(
        "--shape", choices=list(SHAPES), default="qwen3-4b", help="shape of the model with random weights (qwen3-4b)"
    )
    parser.add_argument(
        "--layers", type=positive, default=3, help="number of layers with weights of their own, at least 3 (3)"
    )
    parser.add_argument("--rounds", type=positive, default=3, help="number of rounds; the result is their median (3)")
    parser.add_argument("--threads", type=positive, default=None, help="number of threads (default: torch's choice)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (0)")
    args = parser.parse_args(arguments)
    whole = config_of(args.shape).num_hidden_layers
    if not 3 <= args.layers <= whole:
        parser.error(f"--layers {args.layers}: must be from 3 to {whole}")
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    model = built(args.shape, args.layers)
    cases: dict[str, dict[str, Any]] = {}
    rates: dict[str, float] = {}
    for dtype, loud in (("float32", False), ("bfloat16", False), ("bfloat16", True)):
        model.to(getattr(torch, dtype))
        if loud:
            with torch.no_grad():
                model.model.norm.weight.mul_(LOUD)
        rates.setdefault(dtype, rate(getattr(torch, dtype), model.config))
        alike = probed(model, args.rounds)
        last = model.model.layers[args.layers - 1]
        last.of_another_kind = True
        more = probed(model, args.rounds)
        del last.of_another_kind
        each = (more["cpu_seconds"] - alike["cpu_seconds"]) / (args.layers - 2)
        name = f"{dtype}, large logits" if loud else dtype
        cases[name] = {"passed_2": alike, f"passed_{args.layers}": more, "cpu_seconds_a_layer": round(each, 3)}
        cases[name]["cpu_seconds_all_passed"] = round(alike["cpu_seconds"] + (whole - 2) * each, 2)

    show(
        f"Probe of {args.shape}, {whole} layers",
        ["weights", "CPU s", "wall s", "CPU s a further layer"],
        [
            [name, case["passed_2"]["cpu_seconds"], case["passed_2"]["wall_seconds"], case["cpu_seconds_a_layer"]]
            for name, case in cases.items()
        ],
    )
    told = {"cases": cases, "whole_layers": whole, "gflop_a_second": {k: round(v / 1e9, 1) for k, v in rates.items()}}
    finish("probe", args, {name: case["passed_2"]["cpu_seconds"] for name, case in cases.items()}, told)


if __name__ == "__main__":
    main()
