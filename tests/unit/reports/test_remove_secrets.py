"""What is taken out of a run's texts before they are published: paths of its machine, and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from turnwise.reports.remove_secrets import MASK, Cleaner, cleaner

CLEAN = Cleaner(["/home/me", "/srv/my work (old)/runs"])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("policy.model=/a/b/c data.file=rel/x.jsonl", "policy.model=c data.file=rel/x.jsonl"),
        ("see https://host/v1/chat and https://host/home/me/x", "see https://host/v1/chat and https://host/home/me/x"),
        ("file:///home/me/x", "x"),
        ("sqlite:////home/me/x", "x"),
        ("a:/home/me/x", "a:x"),
        ("/work/me/src:/work/me/lib", "src:lib"),
        ("gcc -I/home/me/x -o y", "gcc -Ix -o y"),
        ("-I/home/me/x", "-Ix"),
        ("from ~me/models/x", "from x"),
        ("on //server/share/x", "on x"),
        ("../../home/me/x", "x"),
        ("from /srv/my work (old)/runs/seed0, which", "from seed0, which"),
        ("3/4 of src/turnwise/x and and/or /s", "3/4 of src/turnwise/x and and/or /s"),
        ("http://user:p@w@host/v1", "http://host/v1"),
        ("client.api_key=abc, then", f"client.api_key={MASK}, then"),
        ("server --token abc -v", f"server --token {MASK} -v"),
        ('{"password": "two words"}', f'{{"password": "{MASK}"}}'),
        ("Authorization: Bearer abc.d", f"Authorization: Bearer {MASK}"),
        ("it said ghp_0123456789abcdef", f"it said {MASK}"),
        ("max_tokens=8, token by token, monkey=3", "max_tokens=8, token by token, monkey=3"),
    ],
)
def test_a_text(text: str, left: str) -> None:
    assert CLEAN.text(text) == left == CLEAN.text(left)


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/my models/x",
        "/data/of me (old)/x",
        "~me/my models/x",
        "../../my work/x",
        "file:///home/me/my d/x",
        "//s/my share/x/",
    ],
)
def test_a_value_is_one_path(path: str) -> None:
    assert CLEAN.value(path) == "x"
    assert CLEAN.value({"env": {"files": [path, "rel/y"]}}) == {"env": {"files": ["x", "rel/y"]}}
    assert CLEAN.command(f"python train.py 'data.file={path}'") == "python train.py data.file=x"


def test_values_of_a_tree() -> None:
    given = {
        "env.servers": {"hub": {"command": ["serve", "--token", "abc", "/home/me/db"], "url": "http://me:abc@host/x"}},
        "env.variables.GITHUB_TOKEN": "abc",
        "apiKey": "abc",
        "rollout.sampling.max_tokens": 8,
        "eos_token": "</s>",
        "pad_token": "!",
        "image_token": "<|image|>",
        "eos_token_id": 2,
        "chat_template": "{% set key = x %}/a/b/c",
    }
    left = CLEAN.value(given)
    assert left["env.servers"]["hub"] == {"command": ["serve", "--token", MASK, "db"], "url": "http://host/x"}
    assert (left["env.variables.GITHUB_TOKEN"], left["apiKey"]) == (MASK, MASK)
    same = ("rollout.sampling.max_tokens", "eos_token", "pad_token", "image_token", "eos_token_id", "chat_template")
    assert all(left[key] == given[key] for key in same)


def test_a_command_is_left_with_what_decides_the_run() -> None:
    given = (
        "/usr/bin/python train.py method=grpo judge.client.url=http://user:pw@host logger.wandb.entity=us +logger/wandb=x "
        "'env.files=[/home/me/my files/a.jsonl, /home/me/b.jsonl]' '+env.variables.API_KEY=abc' "
        "'env.servers.x.command=[serve,--token,abc]' seed=1"
    )
    kept = "python train.py method=grpo 'env.files=[a.jsonl,b.jsonl]' '+env.variables.API_KEY=[masked]' "
    assert CLEAN.command(given) == kept + "'env.servers.x.command=[serve,--token,[masked]]' seed=1"
    assert CLEAN.command("python train.py 'data.file=/home/me/x") == "python train.py 'data.file=x"  # no shell reads it


def test_the_folders_of_the_run_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"paths": {"out": "/their disk/of runs", "cache": "rel"}}))
    clean = cleaner(tmp_path)
    places = (f"{Path.home()}/a/x", f"{tmp_path}/x", f"{Path.cwd()}/b/x", "/their disk/of runs/x")
    assert [clean.text(f"at {place}!") for place in places] == ["at x!"] * 4
