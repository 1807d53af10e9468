from __future__ import annotations

import pytest

from turnwise.data.trajectories import read_trajectories
from turnwise.envs.expert_files import expert_file
from turnwise.envs.household import HouseholdEnv, Mistakes


def test_the_file_holds_the_experts_episodes(tmp_path):
    env = HouseholdEnv()
    path = expert_file(env, 6, tmp_path, good=1.0, seed=3)
    read = read_trajectories(path, strict=True).trajectories
    tasks = env.tasks("train", 6, 3)
    assert [t.task for t in read] == list(tasks)
    shown = [env.demonstrate(task, "good", 3) for task in tasks]
    assert [t.messages for t in read] == [tuple(map(dict, t.messages)) for t in shown]
    assert [t.success for t in read] == [t.success for t in shown]


def test_the_same_setting_reads_the_file_that_is_there(tmp_path):
    first = expert_file(HouseholdEnv(), 4, tmp_path)
    stamp = first.stat().st_mtime_ns
    assert expert_file(HouseholdEnv(), 4, tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert sorted(tmp_path.iterdir()) == [first, first.with_name(f"{first.name}.sha256")]


@pytest.mark.parametrize("harm", ["a bit", "the end", "the checksum", "a checksum of nonsense", "an older version"])
def test_a_damaged_file_is_made_again_and_said(tmp_path, caplog, harm):
    path = expert_file(HouseholdEnv(), 3, tmp_path)
    written, beside = path.read_bytes(), path.with_name(f"{path.name}.sha256")
    if harm == "a bit":
        path.write_bytes(written.replace(b"drawer", b"drawfr", 1) if b"drawer" in written else written[::-1])
    elif harm == "the end":
        path.write_bytes(written[: len(written) // 2])
    elif harm == "the checksum":
        beside.write_text("0" * 64)
    elif harm == "a checksum of nonsense":
        beside.write_bytes(b"\xff\xfe")
    else:
        beside.unlink()
    assert expert_file(HouseholdEnv(), 3, tmp_path).read_bytes() == written
    assert path.name in caplog.text
    caplog.clear()
    assert expert_file(HouseholdEnv(), 3, tmp_path).read_bytes() == written and not caplog.text


def test_whatever_changes_the_episodes_changes_the_name(tmp_path):
    env = HouseholdEnv()
    paths = [
        expert_file(env, 3, tmp_path),
        expert_file(env, 4, tmp_path),
        expert_file(env, 3, tmp_path, good=0.0),
        expert_file(env, 3, tmp_path, seed=1),
        expert_file(env, 3, tmp_path, split="seen"),
        expert_file(HouseholdEnv(horizon=5), 3, tmp_path),
        expert_file(HouseholdEnv(mistakes=Mistakes(*[0.0] * len(Mistakes.__dataclass_fields__))), 3, tmp_path),
    ]
    assert len(set(paths)) == len(paths)


def test_the_share_of_good_episodes_is_exact_and_spread_over_the_tasks(tmp_path):
    env = HouseholdEnv()
    tasks = env.tasks("train", 12, 0)
    read = read_trajectories(expert_file(env, 12, tmp_path, good=0.5)).trajectories
    clumsy = {env.demonstrate(task, "clumsy", 0).id for task in tasks}
    marks = [t.id in clumsy for t in read]
    assert sum(marks) == 6
    assert marks != sorted(marks)
    assert marks != [place % 2 == mark for place, mark in enumerate([marks[0]] * 12)]
