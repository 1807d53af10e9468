"""Success by subset: BFCL's subsets, API-Bank's levels, kinds of generated tasks."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.configuration_files import READ

from turnwise.config.schema import compose_config
from turnwise.config.settings import EvaluationSettings
from turnwise.engines.engine import Sampling
from turnwise.errors import InputError
from turnwise.evaluation.base_divergence import Divergence
from turnwise.evaluation.stats import Reply
from turnwise.evaluation.suites import Answer, Episode, Evaluation
from turnwise.runs.result_file import write_result
from turnwise.training import evaluate
from turnwise.training.build_run import Settings
from turnwise.training.candidates import short_prompts
from turnwise.training.distributed import DistributedContext
from turnwise.training.evaluate import Evaluator, read_evaluation, save_evaluation
from turnwise.training.result import in_domain_result, result_metrics, subset_result
from turnwise.types import RolloutTree, State, Task, Turn

# -- subsets -----------------------------------------------------------------------------------------------------------


def played(**subsets):
    """Subset -> the outcomes of its tasks, one greedy episode each."""
    return Evaluation(
        [
            Episode("seen", f"{name}/{i}", "greedy", 0, bool(won), 1, [], name if name != "none" else "")
            for name, outcomes in subsets.items()
            for i, won in enumerate(outcomes)
        ]
    )


def test_an_environments_score_counts_in_place_of_a_win_and_subsets_have_their_own_attempts(monkeypatch, tmp_path):
    """Two data sets: of sampled attempts, one has three and the other one; the score of each is 0.4."""
    tasks = [Task("e", f"{name}/{i}", "seen", {}, name) for name in ("aime24", "amc23") for i in range(2)]

    def play(states, allocator, gate, key, on_tree):
        for state in states:
            turns = [Turn(-1, [1], [0.0], "x", info={"won": False, "score": 0.4}) for _ in range(allocator.group_size)]
            on_tree(RolloutTree(state, turns))
            yield RolloutTree(state, turns)

    player = SimpleNamespace(environment=None, sampling=Sampling(), engine=None, play=play, forget=lambda: None)
    player.using = lambda how, max_turns: player
    settings = EvaluationSettings(tasks=4, attempts=1, attempts_of={"aime24": 3}, items=0)
    measure, phases = object.__new__(Evaluator), Phases()
    measure.settings, measure.phases = SimpleNamespace(eval=settings, device="cpu", folder=tmp_path), phases
    measure.player, measure.candidates = player, SimpleNamespace(held_out=None, plays=True, opening=Opening())
    measure.distributed = DistributedContext()
    measure.module = SimpleNamespace(to=lambda device: None, sync_weights=lambda engine: None)
    monkeypatch.setattr(evaluate, "is_sharded", lambda module: False)
    monkeypatch.setattr(
        evaluate, "fresh_tasks", lambda env, split, count, seed: tasks[:2] if split == "seen" else tasks[2:]
    )
    found = measure.named("after")
    assert {task: len(scores) for task, scores in found.success("sampled").items()} == {
        "aime24/0": 3, "aime24/1": 3, "amc23/0": 1, "amc23/1": 1}  # fmt: skip
    assert len(found.episodes) == phases.total == phases.done == 12 and measure.lost(found) == 0
    assert found.success("greedy") == {task.id: [0.4] for task in tasks}
    assert result_metrics(found)["eval/success/aime24"] == 40.0


class Phases:
    total = done = 0

    @contextmanager
    def phase(self, name, total):
        self.total = total
        yield self.advance

    def advance(self, steps):
        self.done += steps


class Opening:
    def read(self, tasks):
        pass

    def __call__(self, task):
        return (), (1,)


def test_prompts_of_more_tokens_than_allowed_are_left_out_and_counted():
    states, told = [State(str(n), Task("", "t", "train", {}), (1,) * n) for n in (3, 2048, 2049)], []
    phases = SimpleNamespace(log=told.append)
    assert [state.id for state in short_prompts(states, 2048, phases)] == ["3", "2048"]
    assert "1 of 3 prompts have more than 2048 tokens (data.prompt_tokens; the longest has 2049)" in told[0]
    assert short_prompts(states, None, phases) == states and len(told) == 1
    with pytest.raises(InputError, match=r"^data\.prompt_tokens: no state is left"):
        short_prompts(states, 2, phases)


def test_subsets_and_their_mean_by_hand(tmp_path):
    base, after = played(base=[1, 0, 0, 0], long=[0, 0]), played(base=[1, 1, 0, 0], long=[1, 1])
    found = subset_result(base, after, "greedy")
    told = {
        name: (part["base"], part["after"], part["delta"], part["tasks"]) for name, part in found["by_subset"].items()
    }
    assert told == {"base": (25.0, 50.0, 25.0, 4), "long": (0.0, 100.0, 100.0, 2)}
    mean = found["subset_mean"]
    assert (mean["base"], mean["after"], mean["delta"], mean["tasks"]) == (12.5, 75.0, 62.5, 6)
    assert mean["delta_ci95"][0] < 62.5 < mean["delta_ci95"][1]
    assert in_domain_result(base, after)["base"] == pytest.approx(100 / 6, abs=0.01)  # all tasks weigh the same there
    metrics = result_metrics(after)
    assert (metrics["eval/success/base"], metrics["eval/success/long"]) == (50.0, 100.0)
    assert write_result(
        {"method": "x", "env": "y", "scale": "tiny", "seed": 0, "in_domain": in_domain_result(base, after)}, tmp_path
    )


# -- files of evaluations ----------------------------------------------------------------------------------------------


def test_an_evaluation_is_read_as_it_was_saved_and_a_damaged_one_is_repeated(tmp_path, caplog):
    messages = [{"role": "user", "content": "caf\u00e9\u2028"}, {"role": "assistant", "content": ""}]
    evaluation = Evaluation(
        [
            Episode("seen", "t", "greedy", 0, True, 2, messages, "base"),
            Episode("unseen", "u", "sampled", 1, 0.4, 1, []),
        ],
        [Answer("copy", "0", 0.5, "say", "said", "say")],
        [Reply("d@1", "d", 1, ("find",), 2.5, 7, ((1.0, 0.0), (0.0, 0.0)), ((1.0, 1.0),), "expert", "said")],
        [Divergence("why", 9, 0.25, 8)],
    )
    path = tmp_path / "evaluation" / "after.jsonl"
    assert read_evaluation(path) is None and not caplog.records  # no file is no damage
    save_evaluation(path, evaluation)
    assert read_evaluation(path) == evaluation
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"\xff" + whole, b"{}\n" + whole, whole.replace(b'"task"', b'"other"'), b"[" * 100_000):
        caplog.clear()
        path.write_bytes(damaged)
        assert read_evaluation(path) is None
        assert str(path) in caplog.text
    save_evaluation(path, Evaluation())
    assert read_evaluation(path) == Evaluation()


# -- base key ----------------------------------------------------------------------------------------------------------

CONF = Path(__file__).parents[3] / "conf"


def key(*overrides: str) -> str | None:
    cfg = compose_config(["env=household", *overrides], CONF, read=READ)
    return evaluate.base_policy_key(cfg, Settings.of(cfg), "base")


@pytest.fixture(autouse=True)
def _clean_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "commit", lambda: "abc")


@pytest.mark.parametrize(
    "override",
    [
        "rollout.max_length=999",
        "rollout.sampling.temperature=0.3",
        "eval.seed=7",
        "env.verifier=oracle",
        "engine.weights=float16",
    ],
)
def test_whatever_changes_the_evaluation_changes_the_key(override: str) -> None:
    assert key(override) != key() is not None


@pytest.mark.parametrize(("rank", "known"), [(1, ()), (0, ("own",)), (0, ("own", "shared")), (0, ("shared",)), (0, ())])
def test_the_key_is_made_once_and_only_where_the_run_has_no_evaluation(monkeypatch, tmp_path, rank, known):
    """Each process asks once for the evaluation, which the processes make together."""
    measure, made, asked = object.__new__(Evaluator), [], []
    measure.settings = SimpleNamespace(folder=tmp_path / "run", cache=tmp_path)
    measure.distributed, measure.candidates = DistributedContext(rank, 2), SimpleNamespace(held_out=None)
    measure.policy = SimpleNamespace(source="base")
    monkeypatch.setattr(evaluate, "base_policy_key", lambda *_: made.append(1) or "key")
    evaluation, own, shared = played(x=[1]), tmp_path / "run/evaluation/base.jsonl", tmp_path / "base-key.jsonl"
    for name, path in {"own": own, "shared": shared}.items():
        if name in known:
            save_evaluation(path, evaluation)
    monkeypatch.setattr(Evaluator, "named", lambda self, name: asked.append(name) or evaluation)
    assert measure.base(None) is evaluation and asked == ["base"]
    assert len(made) == (rank == 0 and "own" not in known)
    assert own.exists() == bool(known) and shared.exists() == (rank == 0 and known != ("own",))


def test_changed_code_uses_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "commit", lambda: "abc+")
    assert key() is None
