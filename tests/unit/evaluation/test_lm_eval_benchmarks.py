"""lm-eval itself on the shipped policy, over a task of our own on this disk: the hub is not asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from scripts import evaluate_general
from scripts.evaluate_general import evaluate
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.errors import InputError
from turnwise.runs.result_file import read_result, write_result
from turnwise.shipped import tiny_path
from turnwise_study.run_metrics import read_metric

ROOT = Path(__file__).parents[3]
QUESTIONS = [
    {"question": "You open the drawer. You see", "choices": [" nothing.", " a desk lamp 1."], "answer": 0},
    {"question": "go to", "choices": [" desk 1", " seventeen"], "answer": 0},
    {"question": "take mug 1 from", "choices": [" look", " shelf 1"], "answer": 1},
    {"question": "3 + 4 =", "choices": [" 7", " 9"], "answer": 1},
]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one task of lm-eval's form and its data."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rooms.jsonl"
    data.write_text("".join(json.dumps(item) + "\n" for item in QUESTIONS))
    task = {
        "task": "rooms",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "rooms.yaml").write_text(yaml.safe_dump(task))
    return tmp_path / "tasks"


def by_hand(model: Any, tokenizer: Any) -> float:
    """Share of questions whose answer's tokens are the likeliest choice's."""
    right = 0
    for item in QUESTIONS:
        scores = []
        for choice in item["choices"]:
            prompt = tokenizer(item["question"], add_special_tokens=False).input_ids
            both = tokenizer(item["question"] + choice, add_special_tokens=False).input_ids
            with torch.no_grad():
                logprobs = model(torch.tensor([both])).logits[0].log_softmax(-1)
            scores.append(sum(logprobs[i - 1, both[i]].item() for i in range(len(prompt), len(both))))
        right += max(range(len(scores)), key=scores.__getitem__) == item["answer"]
    return right / len(QUESTIONS)


@pytest.mark.extra("lmeval")
@pytest.mark.slow
def test_scores_are_those_of_the_models_own_log_probs_and_reports_read_them(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trained policy is the shipped one with its output layer turned round, so that the two differ."""
    path = tiny_path()
    model: Any = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    run = tmp_path / "run"
    base = by_hand(model.eval(), tokenizer)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(-0.5)
    after = by_hand(model, tokenizer)
    model.save_pretrained(run / "model")
    tokenizer.save_pretrained(run / "model")
    (run / "config.yaml").write_text("policy: {model: tiny}\n")
    write_result({"method": "sft", "env": "e", "scale": "tiny", "seed": 0, "in_domain": {}}, run)
    assert evaluate_general.main([str(run), "rooms", "--include", str(tasks)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["base"]["rooms"] == {"acc,none": pytest.approx(base), "items": 4}
    result = read_result(run)
    assert read_metric(result, "general.base.rooms") == pytest.approx(100 * base)
    assert read_metric(result, "general.after.rooms") == pytest.approx(100 * after)
    assert read_metric(result, "general.change.rooms") == pytest.approx(100 * (after - base))
    with pytest.raises(InputError, match="nowhere"):
        evaluate(str(path), None, ["nowhere"])
