from __future__ import annotations

from turnwise.data.trajectories import read_trajectories
from turnwise.training.candidates import expert_file
from turnwise_worlds.household import HouseholdEnv, Mistakes


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
    assert sorted(tmp_path.iterdir()) == [first]


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
