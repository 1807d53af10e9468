"""Questions of reasoning-gym as episodes: splits, scores, what is refused, experts, further tries."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from turnwise.envs.environment import Environment
from turnwise.envs.reasoning_gym import Mistakes, ReasoningGymEnv, package
from turnwise.envs.reasoning_gym.own_scores import OWN_SCORES, calculated
from turnwise.envs.reasoning_gym.package import LETTERS, OWN_TEXT, REFUSED, Dataset, Item
from turnwise.errors import InputError
from turnwise.types import Task

SUMS = {"chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}}

SLOW_OR_SMALL = {"arc_agi", "futoshiki", "word_ladder"}  # word_ladder has fewer items than are numbered


def made(data: str, settings: dict[str, object] | None = None, number: int = 0) -> tuple[Dataset, Item]:
    dataset = Dataset(data, settings or {})
    return dataset, dataset.item(number)


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"make reasoning_gym.*requirements-reasoning-gym\.txt"):
        ReasoningGymEnv(SUMS)


class TestOwnScores:
    @pytest.mark.parametrize(
        ("text", "value", "used"),
        [
            ("81 + 75\n- 9", 147, [9, 75, 81]),
            ("-(2 - 3*4)/5", 2, [2, 3, 4, 5]),
            ("((7))", 7, [7]),
            ("1/3*3", 1, [1, 3, 3]),
        ],
    )
    def test_sums_and_products_are_calculated_exactly(self, text: str, value: int, used: list[int]) -> None:
        found, numbers = calculated(text)
        assert found == value and sorted(numbers) == used

    @pytest.mark.parametrize(
        "text",
        [
            "2**3", "(81\n+2**3)", "(9* *9* *6)", "9*\n*9", "(2*\\\n*3)", "2//1", "2%1", "1<<9", "~1", "+1", "True", "1.0", "1e9",
            "int(1)", "x", "[1]", "1,2", "", "(", "1)+(1", "'1'", "1 if 1 else 1", "1_0+", "9" * 10, "9" * 5000, "(" * 150,
            "-" * 199 + "x", "1 # 2",
        ],
    )  # fmt: skip
    def test_nothing_else_is(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            calculated(text)

    def test_division_by_zero_scores_nothing(self) -> None:
        entry = {"metadata": {"numbers": [1, 0], "target": 1}}
        assert OWN_SCORES["countdown"]("1/0", entry) == 0 and OWN_SCORES["countdown"]("1+0", entry) == 1


@pytest.mark.extra("reasoning_gym")
class TestTasks:
    def test_the_same_arguments_give_the_same_questions_and_splits_share_none(self) -> None:
        one, two = ReasoningGymEnv(SUMS), ReasoningGymEnv(SUMS)
        assert isinstance(one, Environment)
        assert one.tasks("train", 20, 3) == two.tasks("train", 30, 3)[:20]
        asked = {split: {t.data["question"] for t in one.tasks(split, 60, 3)} for split in ("train", "seen", "unseen")}
        other = {t.data["question"] for t in one.tasks("train", 60, 4)}
        assert all(len(questions) == 60 for questions in asked.values()) and asked["train"] != other
        assert not asked["seen"] & (asked["train"] | other) and not asked["unseen"] & (asked["train"] | other)

    def test_data_sets_take_turns_and_are_subsets(self) -> None:
        env = ReasoningGymEnv({"chain_sum": {"level": 0}, "gcd": None}, unseen={"lcm": {"level": 1}})
        assert [task.subset for task in env.tasks("train", 5)] == ["chain_sum", "gcd", "chain_sum", "gcd", "chain_sum"]
        assert {task.subset for task in env.tasks("unseen", 4)} == {"lcm"}

    def test_a_data_set_that_is_used_up_is_told(self) -> None:
        with pytest.raises(InputError, match=r"env\.tasks\.chain_sum: only \d\d questions of the split seen"):
            ReasoningGymEnv({"chain_sum": {"level": 0}}).tasks("seen", 500)

    def test_a_task_that_this_version_asks_otherwise_is_refused(self) -> None:
        env = ReasoningGymEnv(SUMS)
        (task,) = env.tasks("train", 1)
        changed = Task(task.env, task.id, task.split, {**task.data, "question": "1 + 1"})
        with pytest.raises(ValueError, match="has another question"):
            env.reset(changed)

    @pytest.mark.parametrize(
        ("tasks", "message"),
        [
            ({"chain_summ": {}}, r"tasks\.chain_summ: .*chain_sum"),
            ({"chain_sum": {"min_termz": 1}}, r"tasks\.chain_sum\.min_termz: .*no such setting; .*min_terms"),
            ({"chain_sum": {"min_terms": 0}}, r"tasks\.chain_sum: min_terms must be positive"),
            ({"chain_sum": {"level": -1}}, r"tasks\.chain_sum\.level: must be a whole number"),
            ({"gsm_symbolic": {}}, r"tasks\.gsm_symbolic: .*cannot be used: it generates all"),
            ({"puzzle24": {}}, r"tasks\.puzzle24: .*cannot be used: "),
        ],
    )
    def test_a_wrong_data_set_or_setting_is_named(self, tasks: dict[str, dict[str, object]], message: str) -> None:
        with pytest.raises(InputError, match=message):
            ReasoningGymEnv(tasks)

    def test_wrong_numbers_are_named(self) -> None:
        for wrong in (
            {"threshold": 0.0},
            {"horizon": 0},
            {"kept": 0},
            {"reply": "json"},
            {"tasks": {}},
            {"unseen": {}},
        ):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                ReasoningGymEnv(**({"tasks": SUMS} | wrong))  # type: ignore[arg-type]


@pytest.mark.extra("reasoning_gym")
class TestScores:
    def test_scores_are_the_packages(self) -> None:
        dataset, item = made("chain_sum", {"level": 0})
        left, sign, right = item.question.split(":")[1].split("=")[0].split()
        result = int(left) + int(right) if sign == "+" else int(left) - int(right)
        assert item.answer == str(result)  # worked out here
        assert [dataset.score(item, text) for text in (str(result), f"{result}.0", str(result + 11), "x")] == [
            1,
            1,
            0,
            0,
        ]
        assert 0 < dataset.score(item, f"it is {result}") < 1  # the package pays for an answer among words

    def test_answers_that_would_be_evaluated_never_reach_the_scorer(self, tmp_path: Path) -> None:
        canary = tmp_path / "canary"
        code = f"__import__('pathlib').Path({str(canary)!r}).write_text('x')"
        for name in OWN_SCORES:
            dataset, item = made(name)
            assert dataset.score(item, str(item.answer)) == 1
            dataset._made.score_answer = None  # whoever calls the package's scorer fails
            for text in (
                code,
                f"[{code}]",
                "(9**9)",
                "(81\n+2**3)",
                "(9* *9* *6)",
                "9*\n*9*\n*9",
                "9\r**\t9",
                "9" * 5000,
                "9**9**9**9",
                "[i for i in ()]",
                "(lambda: 1)()",
            ):
                assert dataset.score(item, text) == 0, (name, text)
        assert not canary.exists()

    def test_countdown_is_scored_by_its_value_and_numbers(self) -> None:
        dataset, item = made("countdown")
        assert item.answer is not None and dataset.score(item, f"({item.answer})") == 1
        assert dataset.score(item, "1 + 1") == 0 == dataset.score(item, str(item.entry["metadata"]["target"]))

    @pytest.mark.parametrize("name", ["propositional_logic", "rubiks_cube", "rush_hour"])
    def test_scorers_without_a_bound_and_those_that_pay_a_premise_are_refused(self, name: str) -> None:
        with pytest.raises(InputError, match=rf"tasks\.{name}: .*cannot be used"):
            Dataset(name, {})

    @pytest.mark.parametrize("name", LETTERS)
    def test_letters_after_the_answer_do_not_win(self, name: str) -> None:
        dataset = Dataset(name, {"min_word_len": 9, "max_word_len": 9} if name == "spell_backward" else {})
        for item in map(dataset.item, range(10)):
            assert dataset.score(item, f"{item.answer}zzz") == 0 and dataset.score(item, str(item.answer)) == 1

    def test_a_task_of_a_file_cannot_bring_its_own_data_set_or_settings(self) -> None:
        env = ReasoningGymEnv(SUMS)
        (task,) = env.tasks("train", 1)
        for data in ({"dataset": "gcd"}, {"settings": {"min_terms": 2}}, {"settings": None}, {"settings": [1]}):
            with pytest.raises(InputError, match="do not belong to this run"):
                env.reset(Task(task.env, task.id, task.split, {**task.data, **data}))

    def test_every_module_that_evaluates_text_is_known(self) -> None:
        """A later version of the package may evaluate more: what nobody has looked at is refused."""
        evaluating = set()
        for name, (made_by, _) in package.package().DATASETS.items():
            if package._EVALUATING.search(inspect.getsource(inspect.getmodule(made_by))):  # type: ignore[arg-type]
                evaluating.add(name)
        assert evaluating <= {*OWN_SCORES, *OWN_TEXT, *REFUSED}

    def test_a_scorer_that_fails_pays_nothing(self) -> None:
        dataset, item = made("prime_factorization")
        assert dataset.score(item, "not a number") == 0
        assert dataset.score(item, "1" * 20_000) == 0

    @pytest.mark.parametrize(
        ("name", "answers"), [("coin_flip", ["0"]), ("game_of_life_halting", ["x"]), ("puzzle24", ["6 * 4 * 1 * 1"])]
    )
    def test_why_a_data_set_is_refused(self, name: str, answers: list[str]) -> None:
        """One constant answer wins nearly everywhere; once the package corrects that, it can be played."""
        made_by, configured_by = package.package().DATASETS[name]
        dataset = made_by(configured_by(seed=0))
        won = [any(dataset.score_answer(a, dataset[n]) >= 1 for a in answers) for n in range(4)]
        assert sum(won) >= 3 and name in REFUSED


@pytest.mark.slow
@pytest.mark.extra("reasoning_gym")
def test_no_answer_wins_nearly_everywhere() -> None:
    """Constants and lines of the question, over every data set that can be played. A yes or no may win more than half."""
    constants = ["", "{}", "[]", "()", "0", "1", "2", "-1", "x", "?", "No", "Yes", "True", "False", "None"]
    won: dict[tuple[str, str], float] = {}
    for name in sorted(package.package().DATASETS.keys() - REFUSED.keys() - SLOW_OR_SMALL):
        dataset = Dataset(name, {})
        items = [dataset.item(number) for number in range(24)]
        shares = {text: sum(dataset.score(item, text) >= 1 for item in items) / len(items) for text in constants}
        for place in (0, -1):
            lines = [item.question.strip().splitlines()[place] for item in items]
            shares[f"line {place}"] = sum(
                dataset.score(item, line) >= 1 for item, line in zip(items, lines, strict=True)
            ) / len(items)
        won |= {(name, text): share for text, share in shares.items() if share >= 0.8}
    assert not won


@pytest.mark.extra("reasoning_gym")
class TestEpisodes:
    def test_one_answer_ends_the_episode(self) -> None:
        env = ReasoningGymEnv(SUMS)
        session = env.reset(env.tasks("train", 1)[0])
        twin = session.fork()
        lost, won = session.step("nothing"), twin.step(f" {twin.item.answer}\n")
        assert (lost.done, lost.won, lost.reward) == (True, False, 0)
        assert (won.done, won.won, won.reward) == (True, True, 1)

    def test_with_further_tries_the_score_is_told(self) -> None:
        env = ReasoningGymEnv(SUMS, horizon=3)
        session = env.reset(env.tasks("train", 1)[0])
        first = session.step("nothing")
        assert not first.done and "0.00" in first.observation
        assert session.step(str(session.item.answer)).won

    def test_tags_are_read_after_the_thinking(self) -> None:
        env = ReasoningGymEnv(SUMS, reply="tags")
        session = env.reset(env.tasks("train", 1)[0])
        assert [message["role"] for message in session.opening()] == ["system", "user"]
        right = f"<think><answer>0</answer></think>so <answer>0</answer> no, <answer> {session.item.answer} </answer>"
        assert session.score(right) == 1 == session.score(session.write(str(session.item.answer)))
        assert session.score(str(session.item.answer)) == 0 == session.score("<think>never closed")

    def test_the_clumsy_expert_recovers_and_errs_only_where_it_can(self) -> None:
        always = Mistakes(slip=0.8, empty=0.0)
        once, thrice = ReasoningGymEnv(SUMS, mistakes=always), ReasoningGymEnv(SUMS, horizon=3, mistakes=always)
        for task in once.tasks("train", 10):
            assert once.demonstrate(task, "clumsy").success and thrice.demonstrate(task, "clumsy").success
        turns = [len(thrice.demonstrate(task, "clumsy").acts) for task in thrice.tasks("train", 10)]
        assert max(turns) == 3

    def test_what_has_no_answer_cannot_be_demonstrated(self) -> None:
        env = ReasoningGymEnv({"graph_color": {}})
        with pytest.raises(InputError, match="method=grpo"):
            env.demonstrate(env.tasks("train", 1)[0])
