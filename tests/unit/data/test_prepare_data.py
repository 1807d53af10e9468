"""scripts/prepare_data.py as a program: what it writes, what it says, how it ends."""

from __future__ import annotations

import json

import pytest
from scripts import prepare_data

from turnwise.data.trajectories import read_trajectories, write_trajectories
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.search import SearchEnv

TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def talk(said):
    return {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": said}], "tools": [TOOL]}


def run(capsys, *arguments):
    status = prepare_data.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_it_counts_by_reason_with_lines(tmp_path, capsys):
    path, out = tmp_path / "x.jsonl", tmp_path / "folder" / "out.jsonl"
    lines = [json.dumps(talk(said)) for said in ("[f(a=1)]", "[f(a='x')]", "fine", "[f(a=2.5)]")]
    path.write_text("\n".join([*lines, "{", ""]) + "\n")
    status, said, _ = run(capsys, path, "--out", out)
    assert status == 0
    result = json.loads(said.splitlines()[-1])
    assert result == {
        "read": 6,
        "written": 2,
        "unusable": 4,
        "reasons": {
            "call does not fit its tool": {"count": 2, "places": [f"{path}:2", f"{path}:4"]},
            "broken JSON": {"count": 1, "places": [f"{path}:5"]},
            "empty line": {"count": 1, "places": [f"{path}:6"]},
        },
        "out": str(out),
    }
    assert "x.jsonl:2, 4" in said and "arguments.a must be integer" in said
    first, second = read_trajectories(out).trajectories
    assert first.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert second.messages[1]["content"] == "fine"


@pytest.mark.parametrize(
    ("make", "arguments", "said"),
    [
        (None, [], "no such file"),
        ('[{"messages": 1},\n{]', [], "x.json"),
        ("[]", [], "no usable trajectory"),
        ('[{"text": 1}]', [], "x.json:1: the record has no conversation"),
        (json.dumps([talk("yes"), {}]), ["--strict"], "1 trajectories cannot be used"),
        (json.dumps([talk("yes")]), ["--out", "x.csv"], "ends in .jsonl"),
    ],
)
def test_what_cannot_be_done_leaves_no_file_and_status_2(tmp_path, capsys, make, arguments, said):
    path, out = tmp_path / "x.json", tmp_path / "out.jsonl"
    if make is not None:
        path.write_text(make)
    status, _, error = run(capsys, path, "--out", out, *arguments)
    assert status == 2
    assert said in error
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])  # of the file that datasets writes
@pytest.mark.parametrize("world", [HouseholdEnv(), SearchEnv(level="full")], ids=lambda world: world.name)
def test_our_trajectories_come_back_as_they_were_through_datasets_too(tmp_path, capsys, monkeypatch, world, ending):
    tasks = world.tasks("train", 4)
    ours = [world.demonstrate(task, quality) for task, quality in zip(tasks, ("good", "clumsy") * 2)]
    written, again, out = tmp_path / "a.jsonl", tmp_path / f"b.{ending}", tmp_path / "c.jsonl"
    write_trajectories(written, ours)
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset("json", data_files=str(written), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["id"][:] == [trajectory.id for trajectory in ours]
    loaded.to_json(str(again)) if ending == "jsonl" else loaded.to_parquet(str(again))
    status, said, _ = run(capsys, again, "--out", out)
    assert status == 0 and json.loads(said.splitlines()[-1])["unusable"] == 0
    bare = [(t.id, t.messages, t.tools, t.task, t.success) for t in ours]
    assert [(t.id, t.messages, t.tools, t.task, t.success) for t in read_trajectories(out).trajectories] == bare


def test_masked_tools_and_their_calls_keep_their_descriptions_and_lose_their_names(tmp_path, capsys):
    path, out = tmp_path / "x.jsonl", tmp_path / "out.jsonl"
    schema = {"type": "object", "required": ["a"], "properties": {
        "a": {"type": "integer", "description": "the first"}, "b": {"type": "integer"}}}  # fmt: skip
    record = talk("[f(a=1), f(a=2, b=3)]") | {"tools": [{"name": "f", "description": "adds", "parameters": schema}]}
    path.write_text("".join(json.dumps(record | {"id": name}) + "\n" for name in ("x", "y")))
    assert run(capsys, path, "--out", out, "--mask", 5)[0] == 0
    once = read_trajectories(out)
    assert not once.problems  # the calls fit the new schemas
    tools = [t.tools[0]["function"] for t in once.trajectories]
    assert tools[0]["name"] != tools[1]["name"] and "f" not in {tool["name"] for tool in tools}
    for tool, trajectory in zip(tools, once.trajectories):
        (a,) = tool["parameters"]["required"]
        (b,) = tool["parameters"]["properties"].keys() - {a}
        assert tool["description"] == "adds" and not {"a", "b"} & {a, b}
        assert tool["parameters"]["properties"][a]["description"] == "the first"
        calls = [call["function"] for call in trajectory.messages[-1]["tool_calls"]]
        assert calls == [{"name": tool["name"], "arguments": {a: 1}}, {"name": tool["name"], "arguments": {a: 2, b: 3}}]
    assert run(capsys, path, "--out", out, "--mask", 5)[0] == 0
    assert read_trajectories(out).trajectories == once.trajectories
