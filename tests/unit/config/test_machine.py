from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save

from turnwise.config.machine import check_machine, opening
from turnwise.config.schema import ConfigError

CONF = Path(__file__).parents[3] / "conf"


def config(folder: Path, **changes: object) -> DictConfig:
    cfg = OmegaConf.create(
        {
            "paths": {"out": str(folder / "run"), "cache": str(folder / "cache")},
            "trainer": {"accelerator": "cpu", "devices": 1},
            "policy": {"model": "tiny"},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    return cfg


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_a_gpu_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for accelerator in ("gpu", "cuda"):
        with pytest.raises(ConfigError, match=f"trainer.accelerator={accelerator}.*trainer=cpu"):
            check_machine(config(tmp_path, trainer__accelerator=accelerator))
    check_machine(config(tmp_path, trainer__accelerator="auto"))


def test_a_run_says_early_that_it_waits_for_its_server_and_a_check_does_not_wait(tmp_path: Path) -> None:
    cfg = config(tmp_path, method="grpo", engine__url="http://127.0.0.1:9", engine__wait_limit=900.0)
    check_machine(cfg)
    assert "\nengine.url=http://127.0.0.1:9: " in opening(cfg) and "engine.wait_limit" in opening(cfg)
    checked = config(tmp_path, method="grpo", engine__url="http://127.0.0.1:9", check=True, policy__lora__r=16)
    with pytest.raises(ConfigError, match=r"^engine\.url=http://127\.0\.0\.1:9: "):
        check_machine(checked)
    assert "engine.url" not in opening(checked)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_machine(config(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for key in ("paths.out", "paths.cache"):
        for given in ("", "  ", f"{tmp_path}/file", f"{tmp_path}/file/below/it", str(tmp_path / ("a" * 300))):
            with pytest.raises(ConfigError) as refused:
                check_machine(config(tmp_path, **{key.replace(".", "__"): given}))
            assert [mistake.partition(":")[0].partition("=")[0] for mistake in refused.value.mistakes] == [key]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"paths\.out=.*paths\.cache="):
        check_machine(config(tmp_path))


def test_a_model_that_is_nowhere_is_told_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    cfg = config(tmp_path, policy__model="somebody/some-model-of-theirs", predictor__model="./not/a/folder")
    began = time.monotonic()
    with pytest.raises(ConfigError) as refused:
        check_machine(cfg)
    assert time.monotonic() - began < 30  # the hub's client tries for a minute
    first, second = refused.value.mistakes
    assert first.startswith("policy.model=somebody/some-model-of-theirs: ")
    assert "hf download somebody/some-model-of-theirs" in first
    assert second.startswith("predictor.model=./not/a/folder: ")


def test_the_cache_of_all_runs_lies_in_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for given in ("run", "run/cache", "link/cache"):
        with pytest.raises(ConfigError, match=r"paths\.cache"):
            check_machine(config(tmp_path, paths__cache=str(tmp_path / given)))
    check_machine(config(tmp_path, paths__cache=str(tmp_path / "run2")))


INPUTS = [  # command line, what the message names: the key and the remedy
    ("method=sft data.file=none.jsonl", "data.file=none.jsonl"),
    ("method=sft data.file='~nobody.here/x.jsonl'", "data.file=~nobody.here/x.jsonl"),
    ("method=sft data.file=sharegpt.jsonl", "sharegpt.jsonl:1 scripts/prepare_data.py"),
    ("method=sft data.file=alpaca.jsonl", "alpaca.jsonl:1 prepare_data"),
    ("method=sft data.file=broken.jsonl", "broken.jsonl:1"),
    ("method=sft data.file=half.jsonl data.strict=true", "half.jsonl:2 data.strict"),
    ("method=sft data.file=empty.jsonl", "empty.jsonl"),
    ("method=grpo env=math env.files={seen:none.jsonl}", "env.files.seen=none.jsonl"),
    ("method=grpo env=terminal", "bubblewrap"),
    ("method=grpo policy.model=run", "policy.model=run policy.start=run/adapter"),
    ("method=grpo policy.model=run/adapter", "policy.model=run/adapter policy.start"),
    ("method=grpo policy.model=whole", "policy.model=whole tokenizer"),
    ("method=grpo policy.model=base", "policy.model=base chat_template"),
    ("method=grpo policy.start=none", "policy.start=none"),
    ("method=grpo policy.start=run", "policy.start=run policy.start=run/adapter"),
    ("method=grpo policy.start=run/adapter", "policy.start=run/adapter policy.model=org/Other-4B"),
    ("method=grpo policy.start=whole", "policy.start=whole policy.model=whole"),
    ("method=grpo policy.start=outputs/mine", "policy.start=outputs/mine policy.start=outputs/mine/seed0/adapter"),
    ("method=grpo policy.start=cut", "policy.start=cut adapter_model.safetensors"),
    ("method=grpo policy.model=short", "policy.model=short model.safetensors"),
    ("method=grpo policy.model=small rollout.max_length=512", "rollout.max_length=512 rollout.max_length=256"),
]


def test_inputs_are_refused_with_the_remedy_before_torch_is_imported(tmp_path: Path) -> None:
    for name, lines in {
        "sharegpt": [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}] * 30,
        "alpaca": [{"instruction": "a", "output": "b"}] * 30,
        "half": [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, {}],
    }.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "broken.jsonl").write_text("{")
    (tmp_path / "empty.jsonl").write_text("")
    weights = save({"w": torch.zeros(4)})
    about = {"peft_type": "LORA", "base_model_name_or_path": "org/Other-4B"}
    adapter = {"adapter_model.safetensors": weights, "adapter_config.json": json.dumps(about).encode()}
    chat = {"config.json": b'{"max_position_embeddings": 256}', "tokenizer_config.json": b'{"chat_template": ""}'}
    for folder, files in {
        "run/adapter": adapter,
        "outputs/mine/seed0/adapter": adapter,
        "cut": adapter | {"adapter_model.safetensors": weights[:-1]},
        "whole": {"config.json": b"{}"},
        "base": {"config.json": b"{}", "tokenizer_config.json": b"{}"},
        "short": chat | {"model.safetensors": weights[:5]},
        "small": chat | {"model.safetensors": weights},
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        for file, content in files.items():
            (tmp_path / folder / file).write_bytes(content)
    code = f"""
import json, pathlib, sys
from turnwise.config.check import check_config
from turnwise.config.machine import check_inputs, check_machine
from turnwise.config.schema import compose_config
from turnwise.errors import InputError
told = []
for line in {[line for line, _ in INPUTS]!r}:
    cfg = compose_config([*line.split(), "name=x"], pathlib.Path({str(CONF)!r}))
    try:
        check_config(cfg), check_machine(cfg), check_inputs(cfg)
        told.append("")
    except InputError as error:
        told.append(str(error))
assert not {{"torch", "transformers", "lightning"}} & set(sys.modules)
print(json.dumps(told))
"""
    no_programs = {**os.environ, "PATH": ""}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, env=no_programs, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for (line, words), told in zip(INPUTS, json.loads(run.stdout), strict=True):
        assert all(word in told for word in words.split()), (line, told)
        assert told.count("\n") <= 1, told  # equal mistakes of a file are one line
