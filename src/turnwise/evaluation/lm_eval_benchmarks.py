"""Evaluates a model, with or without a trained adapter, on general benchmarks with EleutherAI's lm-eval, an optional
package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import InputError

INSTALL = "`make lmeval` installs it"


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
        raise InputError(f"lm-eval cannot be imported ({error}); {INSTALL}") from error
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
    return {task: _numbers(values) | _items(counts.get(task)) for task, values in evaluation["results"].items()}


def headline(values: Mapping[str, float]) -> float | None:
    """Returns 100 times the first metric that lm-eval lists for a task. The result is None if there is no metric, or
    if the metric is not between 0 and 1.
    """
    first = next((value for name, value in values.items() if name != "items"), None)
    return None if first is None or not 0 <= first <= 1 else round(100 * first, 2)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and "," in name and "_stderr" not in name
    }


def _items(count: Mapping[str, int] | None) -> dict[str, float]:
    return {"items": count["effective"]} if count else {}
