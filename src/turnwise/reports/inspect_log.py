"""Writes the training rollouts and held-out evaluations of a run as log files of Inspect (the optional package
inspect-ai).

The code uses Inspect's terms: a sample is a state, a task or a question, and an epoch of the sample is one rollout,
attempt or answer for it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from turnwise.errors import InputError
from turnwise.reports.model_card import base_of
from turnwise.reports.recorded_paths import paths_of
from turnwise.reports.remove_secrets import cleaner
from turnwise.runs.config_file import read_record
from turnwise.runs.json_lines import checked_lines
from turnwise.runs.result_file import ResultError, read_result

REMEDY = (
    "logs of Inspect need inspect-ai: `make inspect` installs it"
)
Message = tuple[str, str]
"""A chat message as a pair (role, text)."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout, attempt or answer, which Inspect calls an epoch of a sample.

    Attributes:
        sample: id of the sample. All rollouts from the same state have the same id.
        given: the messages before the first action.
        said: the messages after ``given``: actions and the answers of the environment.
        scores: name of a reward or score -> its value.
        tokens: number of tokens that the policy wrote in the whole rollout; None if the run does not record it.
        new_tokens: number of those tokens in turns that are not part of an earlier rollout of the same tree.
        target: the demonstrated action, or the correct answer.
    """

    sample: str
    given: Sequence[Message]
    said: Sequence[Message]
    scores: Mapping[str, float]
    tokens: int | None = None
    new_tokens: int = 0
    target: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


def training_rollouts(path: Path) -> Iterator[Rollout]:
    """Yields every rollout of the rollout trees in the file ``path``, in the order of training. A rollout is a path
    from the root of a tree to a leaf.

    Raises:
        InputError: a line is damaged, or is not a recorded rollout tree with texts.
    """
    for place, tree in checked_lines(path):
        try:
            yield from _leaves(tree)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f"{place}: this line is not a recorded rollout tree ({error!r}); start the run again, or remove "
                "the line"
            ) from error


def _leaves(tree: Mapping[str, Any]) -> Iterator[Rollout]:
    state, turns = tree["state"], tree["turns"]
    counted: set[int] = set()
    for number, path in enumerate(paths_of(turns)):
        said: list[Message] = []
        for turn in (turns[i] for i in path):
            said.append(("assistant", turn["text"]))
            if turn["observation"]:
                said.append((turn.get("info", {}).get("role", "user"), turn["observation"]))
        rewards = {name: tree["rewards"][name][number] for name in sorted(tree["rewards"], key="total".__ne__)}
        yield Rollout(
            sample=state["id"],
            given=[(message["role"], message["content"] or "") for message in state["messages"]],
            said=said,
            scores={name: value for name, value in rewards.items() if value is not None},
            tokens=sum(turns[i].get("tokens", 0) for i in path),
            new_tokens=sum(turns[i].get("tokens", 0) for i in path if i not in counted),
            target=tree.get("expert") or "",
            about={
                "iteration": tree["iteration"],
                "task": state["task"],
                "type": state.get("type"),
                "turn": state.get("turn"),
                "stopped by the gate": tree.get("stopped", False),
                "advantages": [turns[i].get("advantage") for i in path],
                "log-probs": [turns[i].get("logprob") for i in path],
            },
        )
        counted.update(path)


def evaluations(path: Path) -> dict[str, list[Rollout]]:
    """Returns kind -> rollouts of an evaluation. The kinds are ``sampled`` and ``greedy`` (attempts at held-out tasks)
    and ``skills`` (answers to out-of-domain items).

    Replies in held-out dialogues are left out, because a run does not record the messages before them.

    Raises:
        InputError: a line is damaged, or is not a record of an evaluation with texts.
    """
    found: dict[str, list[Rollout]] = defaultdict(list)
    for place, row in checked_lines(path):
        try:
            if "reply" in row:
                continue
            if "suite" in row:
                about = {"suite": row["suite"]}
                given, said = [("user", row["prompt"])], [("assistant", row["answer"])]
                scores = {"score": float(row["score"])}
                found["skills"].append(
                    Rollout(row["item"], given, said, scores, target=row["reference"] or "", about=about)
                )
                continue
            messages = [(message["role"], message["content"] or "") for message in row["messages"]]
            first = next((i for i, (role, _) in enumerate(messages) if role == "assistant"), len(messages))
            about = {"split": row["split"], "subset": row.get("subset"), "turns": row["turns"]}
            scores = {"success": float(row["success"])}
            found[row["mode"]].append(Rollout(row["task"], messages[:first], messages[first:], scores, about=about))
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise InputError(
                f"{place}: this line is not a record of an evaluation ({error!r}); start the run again"
            ) from error
    return dict(found)


def write_logs(folder: Path, to: Path, kind: Literal["eval", "json"] = "eval") -> list[Path]:
    """Writes the logs of the run in ``folder`` to the folder ``to``, and returns their paths. Earlier logs of this run
    in ``to`` are replaced.

    Raises:
        InputError: inspect-ai is not installed, or ``folder`` holds no rollouts with texts.
        OSError: the logs cannot be written.
    """
    try:
        from inspect_ai.log import write_eval_log  # an optional package
    except ImportError as error:
        raise InputError(f"{REMEDY} ({error})") from error
    if not folder.is_dir():
        raise InputError(f"{folder}: this folder does not exist; give a run's folder, such as outputs/pivotrl/seed0")
    settings, recorded = read_record(folder), folder / "rollouts" / "train.jsonl"
    parts = {"rollouts": list(training_rollouts(recorded))} if recorded.exists() else {}
    for side in ("base", "after"):
        path = folder / "evaluation" / f"{side}.jsonl"
        found = evaluations(path) if path.exists() else {}
        parts |= {f"{side}-{mode}": rollouts for mode, rollouts in found.items()}
    parts = {name: rollouts for name, rollouts in parts.items() if rollouts}
    if not parts:
        raise InputError(
            f"{folder}: there are no rollouts with texts (rollouts/train.jsonl, evaluation/*.jsonl); give the folder of a run"
        )
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rollouts in parts.items():
        log = _log(name, rollouts, folder, settings)
        at = datetime.fromisoformat(log.eval.created).strftime("%Y-%m-%dT%H-%M-%S")
        path = to / f"{at}_{name}_{log.eval.task_id}.{kind}"
        write_eval_log(log, path, format=kind)
        for earlier in (*to.glob(f"*_{name}_{log.eval.task_id}.eval"), *to.glob(f"*_{name}_{log.eval.task_id}.json")):
            if earlier != path:
                earlier.unlink()
        written.append(path)
    return written


def _log(name: str, rollouts: Sequence[Rollout], folder: Path, settings: Mapping[str, Any]) -> Any:
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalRevision,
        EvalScore,
        EvalSpec,
        EvalStats,
    )
    from inspect_ai.model import ModelUsage

    try:
        result = read_result(folder)
    except ResultError:
        result = None  # an unfinished run has rollouts too
    ended = result.finished if result and isinstance(result.finished, str) else None
    moment = datetime.fromtimestamp((folder / "config.yaml").stat().st_mtime, UTC).isoformat()
    created = ended.replace("Z", "+00:00") if ended else moment
    model = f"turnwise/{base_of(settings).name}"
    samples = _samples(rollouts, model)
    ids = list(dict.fromkeys(sample.id for sample in samples))
    digest = hashlib.sha256(f"{folder.resolve()} {name}".encode()).hexdigest()[:22]
    scores = defaultdict(list)
    for rollout in rollouts:
        for key, value in rollout.scores.items():
            scores[key].append(value)
    means = [
        EvalScore(
            name=key,
            scorer=key,
            scored_samples=len(values),
            metrics={"mean": EvalMetric(name="mean", value=sum(values) / len(values))},
        )
        for key, values in scores.items()
    ]
    wrote = sum(rollout.new_tokens for rollout in rollouts)  # counts a turn once, even if several rollouts share it
    usage = {model: ModelUsage(output_tokens=wrote, total_tokens=wrote)} if wrote else {}
    about = {
        "method": str(settings.get("method")),
        "seed": settings.get("seed"),
        "command": cleaner(folder).command(result.command or "") if result else "",
        "config_hash": result.config_hash if result else "",
    }
    return EvalLog(
        status="success" if result else "started",
        eval=EvalSpec(
            created=created,
            eval_id=digest,
            run_id=digest,
            task=name,
            task_id=digest,
            model=model,
            dataset=EvalDataset(name=result.env if result else name, samples=len(ids), sample_ids=ids),
            config=EvalConfig(epochs=max(sample.epoch for sample in samples)),
            revision=EvalRevision(type="git", origin="", commit=result.commit) if result and result.commit else None,
            packages=dict(result.versions) if result else {},
            metadata=about,
        ),
        results=EvalResults(total_samples=len(samples), completed_samples=len(samples), scores=means),
        stats=EvalStats(started_at=created, completed_at=created if result else "", model_usage=usage),
        samples=samples,
    )


def _samples(rollouts: Sequence[Rollout], model: str) -> list[Any]:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        ModelOutput,
        ModelUsage,
    )
    from inspect_ai.scorer import Score

    kinds = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
        "tool": ChatMessageTool,
    }
    epochs: dict[str, int] = defaultdict(int)
    samples = []
    for rollout in rollouts:
        epochs[rollout.sample] += 1
        epoch = epochs[rollout.sample]
        messages = [
            kinds.get(role, ChatMessageUser)(content=text, id=f"{rollout.sample}/{epoch}/{place}")
            for place, (role, text) in enumerate([*rollout.given, *rollout.said])
        ]
        last = next((text for role, text in reversed(rollout.said) if role == "assistant"), "")
        usage = None
        if rollout.tokens is not None:
            usage = ModelUsage(output_tokens=rollout.tokens, total_tokens=rollout.tokens)
        output = ModelOutput.from_content(model, last)
        output.usage = usage
        samples.append(
            EvalSample(
                id=rollout.sample,
                epoch=epoch,
                input=messages[: len(rollout.given)],
                target=rollout.target,
                messages=messages,
                output=output,
                scores={name: Score(value=value, answer=last) for name, value in rollout.scores.items()},
                metadata={key: value for key, value in rollout.about.items() if value is not None},
                model_usage={model: usage} if usage else {},
            )
        )
    return samples
