"""Evaluates a finished run on general benchmarks with lm-eval and writes the scores into the run's result.json.

python scripts/evaluate_general.py outputs/pivotrl/seed0 aime25 mmlu_pro ifeval
python scripts/evaluate_general.py outputs/pivotrl/seed0 mine --include my_tasks --limit 100 --chat

Both the base policy and the trained policy are evaluated. lm-eval is an optional package (`make lmeval`); it loads its
data from the Hugging Face Hub. Reports and sweep files can then use general.base.<task>, general.after.<task> and
general.change.<task>, in points.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from turnwise.errors import InputError
from turnwise.files import read_yaml
from turnwise.programs import options, program
from turnwise.runs.result_file import read_result, write_result
from turnwise.shipped import weights_of


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 the run, a task or the package cannot be used."""
    args = parser().parse_args(arguments)
    result = read_result(args.run)  # a run without a result has no file for the scores
    policy = OmegaConf.create(read_yaml(args.run / "config.yaml")).policy
    base, start = weights_of(str(policy.model)), policy.get("start")
    trained = args.run / "model", args.run / "adapter"
    whole, adapter = (path if path.is_dir() else None for path in trained)
    if whole is None and adapter is None:
        raise InputError(f"{args.run}: there is neither model/ nor adapter/; finish the run with python train.py")
    import torch  # only here, because it delays the help and refusals

    device = "cuda" if torch.cuda.is_available() else "cpu"
    same = (args.tasks, args.include, args.limit, args.chat, args.batch, device)
    found = {
        "base": evaluate(base, Path(start) if start else None, *same),
        "after": evaluate(str(whole or base), adapter, *same),
    }
    points = {side: {task: headline(values) for task, values in tasks.items()} for side, tasks in found.items()}
    changes = {
        task: round(after - before, 2)
        for task, before in points["base"].items()
        if before is not None and (after := points["after"].get(task)) is not None
    }
    parts: dict[str, dict[str, Any]] = {side: {task: points[side][task] for task in changes} for side in found}
    earlier = result.general
    general = earlier | {part: earlier.get(part, {}) | scores for part, scores in (parts | {"change": changes}).items()}
    general["metrics"] = {side: earlier.get("metrics", {}).get(side, {}) | found[side] for side in found}
    general["command"] = shlex.join(["python", "scripts/evaluate_general.py", *arguments])
    write_result(result.model_copy(update={"general": general}), args.run)
    for task, change in general["change"].items():
        print(f"{result.method}, {task}: {general['base'][task]} -> {general['after'][task]} ({change:+.2f} points)")
    print(json.dumps(found))
    return 0


def evaluate(
    model: str,
    adapter: Path | None,
    tasks: Sequence[str],
    include: Path | None = None,
    limit: int | None = None,
    chat: bool = False,
    batch: int = 1,
    device: str = "cpu",
    dtype: str = "auto",
) -> dict[str, dict[str, float]]:
    """Runs tasks of lm-eval on a Hugging Face model.

    Args:
        model: the folder or Hugging Face id of the weights and their tokenizer.
        adapter: the folder of a LoRA adapter.
        include: a folder with further task files (YAML).
        limit: largest number of items of each task.

    Returns:
        Task -> lm-eval's ``metric,filter`` -> value, without standard errors, and ``items``, the number of items.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise InputError(f"lm-eval cannot be imported ({error}); `make lmeval` installs it") from error
    manager = TaskManager(include_path=str(include) if include else None)
    if unknown := [task for task in tasks if not manager.match_tasks([task])]:
        raise InputError(f"tasks={','.join(unknown)}: lm-eval has no such task; `lm-eval ls tasks` lists them")
    policy = HFLM(
        pretrained=model, peft=str(adapter) if adapter else None, batch_size=batch, device=device, dtype=dtype
    )
    evaluation: Any = simple_evaluate(
        policy,
        tasks=list(tasks),
        limit=limit,
        task_manager=manager,
        apply_chat_template=chat,
        bootstrap_iters=0,
        log_samples=False,
    )
    counts = evaluation.get("n-samples", {})
    numbers: dict[str, dict[str, float]] = {}
    for task, values in evaluation["results"].items():
        numbers[task] = {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and "," in name and "_stderr" not in name
        }
        if count := counts.get(task):
            numbers[task]["items"] = count["effective"]
    return numbers


def headline(values: Mapping[str, float]) -> float | None:
    """Returns 100 times the first metric that lm-eval lists for a task. The result is None if there is no metric, or
    if the metric is not between 0 and 1.
    """
    first = next((value for name, value in values.items() if name != "items"), None)
    return None if first is None or not 0 <= first <= 1 else round(100 * first, 2)


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="folder of a finished run")
    add("tasks", nargs="+", help="names of lm-eval's tasks")
    add("--include", type=Path, metavar="FOLDER", help="folder with additional task files")
    add("--limit", type=int, metavar="N", help="number of items of each task (default: all)")
    add("--batch", type=int, default=1, metavar="N", help="number of requests in one batch (1)")
    add("--chat", action="store_true", help="put prompts into the policy's chat template")
    return parser


if __name__ == "__main__":
    sys.exit(main())
