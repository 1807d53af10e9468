"""scripts/push.py against a Hub on this machine: what it is sent, what the card says, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import save_file
from tests.unit.reports.conftest import write_run
from tests.unit.reports.hub_service import LARGE, Hub, serving

from turnwise.errors import InputError
from turnwise.reports.model_card import base_of, model_card
from turnwise.reports.push_to_hub import parcel, push

ROOT = Path(__file__).parents[3]
TOKEN = "hf_" + "s3cret" * 5
HERE = "/home/somebody/work"  # of the machine that made the run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run with an adapter that names places of its machine."""
    folder = write_run(tmp_path / "runs" / "seed0", states=8)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings |= {"policy": {"model": f"{HERE}/my_model", "start": None}, "data": {"file": f"{HERE}/talks.jsonl"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    result = json.loads((folder / "result.json").read_text())
    result["command"] = f"python train.py policy.model={HERE}/my_model 'states.keep=a|b'"
    (folder / "result.json").write_text(json.dumps(result))
    adapter = folder / "adapter"
    adapter.mkdir()
    save_file({"lora": torch.arange(LARGE, dtype=torch.float32)}, adapter / "adapter_model.safetensors")
    about = {"base_model_name_or_path": f"{HERE}/my_model", "r": 16, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    (adapter / "base.json").write_text(json.dumps({"base": f"{HERE}/my_model", "spread": "0f" * 32}))
    (adapter / "README.md").write_text("peft's own card")
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(TOKEN) as served:
        yield served


def pushed(folder: Path, home: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, because huggingface_hub reads its variables once; nobody is logged in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    places = {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, str(ROOT / "scripts" / "push.py"), str(folder), "me/agent", *options]
    return subprocess.run(
        command, env={**kept, **places, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_hub_receives_the_files_and_the_card(run: Path, hub: Hub, tmp_path: Path) -> None:
    done = pushed(run, tmp_path, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert f"{hub.url}/me/agent/commit/" in done.stdout and TOKEN not in done.stdout + done.stderr
    files = hub.files["me/agent"]
    assert set(files) == {"README.md", "adapter_config.json", "adapter_model.safetensors", "base.json"}
    assert files["adapter_model.safetensors"] == (run / "adapter" / "adapter_model.safetensors").read_bytes()
    assert set(hub.large) == {"adapter_model.safetensors"}  # by the storage of large files, the others in the commit
    about = json.loads(files["adapter_config.json"])
    assert about == {"base_model_name_or_path": "my_model", "r": 16, "target_modules": ["q_proj"]}
    assert json.loads(files["base.json"]) == {"base": "my_model", "spread": "0f" * 32}
    assert b"peft's own" not in files["README.md"] and not any(HERE.encode() in data for data in files.values())
    assert hub.created[0]["visibility"] == "private"
    again = pushed(run, tmp_path, "--public", HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)  # into the repository that is there
    assert again.returncode == 0, again.stderr


def test_the_card_says_what_the_run_measured(run: Path) -> None:
    text = model_card(run, "adapter", "me/agent", "mit", "https://example.org/code")
    result = json.loads((run / "result.json").read_text())
    change, data = result["in_domain"], ModelCard(text).data
    assert (data.license, data.library_name, data.base_model) == ("mit", "peft", None)
    (score,) = data.eval_results
    assert score.metric_value == round(change["after"], 2) and score.dataset_name.startswith("household")
    low, high = change["delta_ci95"]
    (row,) = (line for line in text.splitlines() if line.startswith("| greedy, all held-out |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
    assert cells == [
        "33.9 %",
        f"{change['after']:.1f} %",
        f"{change['delta']:+.1f}",
        f"[{low:+.1f}, {high:+.1f}]",
        "192",
    ]
    assert result["config_hash"] in text and result["commit"] in text and "talks.jsonl" in text
    assert "policy.model=my_model 'states.keep=a\\|b'" in text and "arxiv.org/abs/2603.21383" in text
    assert "(https://example.org/code)" in text and "loss.kl: 0.01" in text and "| out of domain, algebra |" in text


def test_a_base_of_the_hub_and_a_shipped_one_are_named_as_such(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache" / "models--Qwen--Qwen3-0.6B").mkdir(parents=True)
    monkeypatch.setattr("turnwise.reports.model_card.HF_HUB_CACHE", str(tmp_path / "cache"))
    settings = yaml.safe_load((run / "config.yaml").read_text())
    for model, base, licence, load in (
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None, 'from_pretrained("Qwen/Qwen3-0.6B")'),
        ("tiny", None, "apache-2.0", 'tiny_path("tiny")'),
    ):
        settings["policy"]["model"] = model
        (run / "config.yaml").write_text(yaml.safe_dump(settings))
        text = model_card(run, "adapter", "me/agent")
        data = ModelCard(text).data
        assert (data.base_model, data.license) == (base, licence) and load in text


def test_a_run_that_trained_all_weights_sends_its_model(run: Path) -> None:
    (run / "adapter").rename(run / "model")
    (run / "model" / "config.json").write_text(json.dumps({"_name_or_path": f"{HERE}/my_model", "layers": 2}))
    ready = parcel(run, "me/agent")
    content = ready.files["config.json"]
    assert isinstance(content, bytes) and json.loads(content) == {"_name_or_path": "my_model", "layers": 2}
    assert ready.sizes["config.json"] == len(content)
    assert "library_name: transformers" in ready.card and "PeftModel" not in ready.card


@pytest.mark.parametrize("options", [["--dry-run"], []], ids=["asked for", "without a token"])
def test_nothing_is_sent(run: Path, hub: Hub, tmp_path: Path, options: list[str]) -> None:
    given = {"HF_TOKEN": TOKEN} if options else {}
    done = pushed(run, tmp_path, *options, HF_ENDPOINT=hub.url, **given)
    assert done.returncode == 0 and hub.asked == []
    size = (run / "adapter" / "adapter_model.safetensors").stat().st_size
    assert "me/agent (private" in done.stdout and f"adapter_model.safetensors  {size:,} bytes" in done.stdout
    assert "# agent" in done.stdout and ("HF_TOKEN" in done.stdout) == (not options)


def test_a_refused_token_is_one_line(run: Path, hub: Hub, tmp_path: Path) -> None:
    done = pushed(run, tmp_path, HF_ENDPOINT=hub.url, HF_TOKEN="hf_another")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "401" in done.stderr and "hf auth login" in done.stderr and "hf_another" not in done.stderr
    assert hub.files == {}


def test_a_hub_that_is_not_there_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="HF_ENDPOINT"):
        push(parcel(run, "me/agent"), TOKEN)


@pytest.mark.parametrize(
    ("break_it", "repository", "named"),
    [
        ("no run", "me/agent", "this folder does not exist"),
        ("no adapter", "me/agent", "adapter/"),
        ("no result", "me/agent", "result.json"),
        ("damaged", "me/agent", "adapter_config.json"),
        ("", "agent", "owner/name"),
        ("", "me/../you", "owner/name"),
    ],
)
def test_what_cannot_be_sent_is_refused(run: Path, break_it: str, repository: str, named: str) -> None:
    if break_it == "no run":
        run = run / "nowhere"
    elif break_it == "no adapter":
        (run / "adapter").rename(run / "elsewhere")
    elif break_it == "no result":
        (run / "result.json").unlink()
    elif break_it == "damaged":
        (run / "adapter" / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match=named):
        parcel(run, repository)


def test_nothing_secret_and_no_place_of_the_machine_is_sent(run: Path) -> None:
    settings = yaml.safe_load((run / "config.yaml").read_text())
    server = {"command": ["serve", "--token", "t0psecret", f"{HERE}/db"]}
    settings["env"] = {
        "servers": {"db": server},
        "files": [f"{HERE}/my talks/a.jsonl"],
        "variables": {"API_KEY": "t0psecret"},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    result = json.loads((run / "result.json").read_text())
    urls = "judge.client.url=http://user:t0psecret@host/v1 logger.wandb.entity=ourteam"
    result["command"] = f"python train.py {urls} 'env.files=[{HERE}/my talks/a.jsonl]' env.password=t0psecret"
    result["warnings"] = [f"{HERE}/run is full; http://user:t0psecret@host said token=t0psecret"]
    (run / "result.json").write_text(json.dumps(result))
    nested = {"base_model_name_or_path": f"{HERE}/m", "auto_mapping": {"from": [f"{HERE}/lib"], "key": "t0psecret"}}
    (run / "adapter" / "adapter_config.json").write_text(json.dumps(nested))
    (run / "adapter" / "notes.txt").write_text("t0psecret")
    (run / "adapter" / "optimizer.pt").symlink_to("/etc/hostname")
    ready = parcel(run, "me/agent")
    for name, content in ready.files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        for word in (b"t0psecret", b"somebody", b"my talks", b"ourteam"):
            assert word not in data, (name, word)
    assert "a.jsonl" in ready.card and set(ready.kept) == {"notes.txt", "optimizer.pt"}
    content = ready.files["adapter_config.json"]
    assert isinstance(content, bytes) and json.loads(content)["auto_mapping"] == {"from": ["lib"], "key": "[masked]"}


@pytest.mark.parametrize("linked", ["adapter/tokenizer.json", "adapter"])
def test_a_link_is_not_followed(run: Path, tmp_path: Path, linked: str) -> None:
    place = run / linked
    if place.is_dir():
        place.rename(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").write_text("{}")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="link"):
        parcel(run, "me/agent")


@pytest.mark.parametrize(
    "model", ["./llama", "../llama", "~/llama", "/models/llama", "here/llama", "models/llama", "llama"]
)
def test_a_name_is_an_id_only_where_that_is_known(run: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.chdir(run)
    (run / "here" / "llama").mkdir(parents=True)
    local = model not in ("models/llama", "llama")
    base = base_of({"policy.model": model})
    assert (base.shipped, base.on_hub, base.local) == (False, False, local) and base.name == (
        "llama" if local else model
    )
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["policy"]["model"] = model
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    text = model_card(run, "adapter", "me/agent")
    assert "huggingface.co" not in text and ModelCard(text).data.base_model is None
    assert ("a local folder" in text) == local and "| licence | not stated |" in text
