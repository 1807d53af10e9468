"""Games of textarena as episodes: deals, draws of their own, forks, experts, what is refused."""

from __future__ import annotations

import copy
import random
import socket

import pytest

from turnwise.envs.environment import Environment, check_forkable, check_ready
from turnwise.envs.textarena import GameSession, Mistakes, TextArenaEnv, episode
from turnwise.envs.textarena.environment import SAMPLES
from turnwise.envs.textarena.solvers import SOLVERS, GuessTheNumber, TowerOfHanoi, _pegs
from turnwise.errors import InputError
from turnwise.types import Task

GAMES = {**dict.fromkeys(SOLVERS, ""), **dict.fromkeys(SAMPLES, ""), "2048": "-ultra-easy"}
IDS = [f"{game}-v0{level}" for game, level in GAMES.items()]
GUESS = "guess the number between 1 and 20 within 10 turns"


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"make textarena.*requirements-textarena\.txt"):
        TextArenaEnv()


class TestSolvers:
    def test_bisection(self) -> None:
        solver = GuessTheNumber()
        first = solver.moves([("", GUESS)])
        assert (
            first.good[0] == "[10]" and first.needed == 5
        )  # 20 numbers: 10 leaves 10, and four more guesses find one of 10
        told = [("", GUESS), ("[10]", "The target number is higher."), ("[15]", "The target number is lower.")]
        left = solver.moves(told)  # 11 to 14 are left
        assert (set(left.good), set(left.idle), left.needed) == ({"[12]", "[13]"} | {"[11]", "[14]"}, set(), 3)

    def test_towers(self) -> None:
        shown = "Current Board: \nA: [3, 2, 1]\nB: []\nC: []\n."
        assert TowerOfHanoi().moves([("", shown)]).needed == 7  # 2^3 - 1
        later = "Current Board: \nA: [3]\nB: [2, 1]\nC: []\n."
        assert TowerOfHanoi().moves([("", shown), ("[A C]", later)]).good == ["[A C]"]

    def test_pegs(self) -> None:
        assert _pegs((4, 6, 1, 2), (1, 2, 3, 4)) == (0, 3)
        assert _pegs((1, 1, 2, 3), (1, 2, 1, 1)) == (1, 2)


@pytest.mark.extra("textarena")
class TestGames:
    @pytest.mark.parametrize("name", IDS)
    def test_every_game_opens_offline_and_repeats_exactly(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket.socket, "connect", _no_network)
        env = TextArenaEnv(name)
        assert isinstance(env, Environment)
        check_ready(env)
        check_forkable(env, ["states=pivots"])

    def test_games_draw_by_themselves(self) -> None:
        """The package seeds and uses Python's global generator; neither other games nor the program may notice."""
        env = TextArenaEnv("2048-v0-ultra-easy")
        task = env.tasks("train", 1)[0]
        alone, beside = env.reset(task), env.reset(task)
        random.seed(7)
        state = random.getstate()
        seen = [alone.step("[left]").observation for _ in range(1)]
        assert random.getstate() == state
        env.reset(env.tasks("train", 2)[1]).step("[up]")
        random.seed(8)
        assert [beside.step("[left]").observation for _ in range(1)] == seen

    def test_a_fork_is_what_a_deep_copy_would_be(self) -> None:
        env = TextArenaEnv("FrozenLake-v0")
        for number, task in enumerate(env.tasks("train", 5)):
            session, rng = env.reset(task), random.Random(number)
            session.step(env.trial(session, rng))
            assert session._holder is not None
            copied, fork, action = copy.deepcopy(session._holder.episode), session.fork(), env.trial(session, rng)
            session.step(env.trial(session, rng))
            assert copied.act(action) == fork.step(action)

    def test_boards_of_splits_are_disjoint_and_seeded(self) -> None:
        env = TextArenaEnv("FrozenLake-v0", {"size": 4})
        boards = {s: {str(env.reset(t).opening()) for t in env.tasks(s, 40)} for s in ("train", "seen", "unseen")}
        assert all(len(found) == 40 for found in boards.values())
        assert not boards["train"] & boards["seen"] and not boards["train"] & boards["unseen"]
        assert env.tasks("train", 3, 1) == env.tasks("train", 5, 1)[:3] != env.tasks("train", 3, 2)

    def test_few_boards_are_told(self) -> None:
        with pytest.raises(InputError, match=r"boards of the split seen"):
            TextArenaEnv("FrozenLake-v0", {"size": 3, "num_holes": 1}).tasks("seen", 50)

    @pytest.mark.parametrize("name", [f"{game}-v0" for game in SOLVERS])
    def test_experts_win(self, name: str) -> None:
        env = TextArenaEnv(name, mistakes=Mistakes(0.4, 0.3))
        for number, task in enumerate(env.tasks("train", 6)):
            good, clumsy = env.demonstrate(task, "good"), env.demonstrate(task, "clumsy", number)
            assert good.success and clumsy.success and len(clumsy.acts) <= env.horizon

    def test_two_invalid_moves_in_a_row_lose(self) -> None:
        env = TextArenaEnv()
        session = env.reset(env.tasks("train", 1)[0])
        assert isinstance(session, GameSession)
        assert not session.step("up").done and session.warned
        assert session.step("up").done and not session.won

    def test_giving_up_by_invalid_moves_pays_nothing(self) -> None:
        """The package pays the share of disks in their places, at an end by invalid moves too."""
        env = TextArenaEnv("TowerOfHanoi-v0")
        session = env.reset(env.tasks("train", 1)[0])
        for move in ("[A C]", "[A B]", "[C B]", "[A C]", "x"):  # the largest disk stands where it belongs
            assert not session.step(move).done
        last = session.step("x")
        assert (last.done, last.won, last.reward) == (True, False, 0.0)

    def test_a_reply_that_wins_at_once_is_accepted(self) -> None:
        env = TextArenaEnv("TowerOfHanoi-v0")
        session = env.reset(env.tasks("train", 1)[0])
        whole = "[A C] [A B] [C B] [A C] [B A] [B C] [A C]"
        assert env.accepts(session, whole, "[A C]") and not env.accepts(session, whole[:-5], "[A C]")
        assert not session.taken and session.step(whole).won

    def test_a_task_of_a_file_cannot_bring_its_own_game_or_settings(self) -> None:
        env = TextArenaEnv("FrozenLake-v0")
        (task,) = env.tasks("train", 1)
        for data in ({"game": "LightsOut-v0"}, {"settings": {"size": 10**6}}):
            with pytest.raises(InputError, match=r"the task was made for .*correct env\.id and env\.settings"):
                env.reset(Task(task.env, task.id, task.split, {**task.data, **data})).step("[up]")

    def test_a_game_without_an_expert_names_the_methods_that_play_it(self) -> None:
        env = TextArenaEnv("LightsOut-v0")
        with pytest.raises(InputError, match=r"no expert for LightsOut-v0.*method=grpo"):
            env.demonstrate(env.tasks("train", 1)[0])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"id": "Wordle-v0"}, r"env\.id=Wordle-v0: .*choose one of .*FrozenLake-v0"),
            ({"settings": {"sizes": 3}}, r"env\.settings: .*GuessTheNumber-v0 .*sizes"),
            ({"horizon": 0}, "horizon"),
        ],
    )
    def test_a_wrong_setting_is_named(self, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            TextArenaEnv(**arguments)  # type: ignore[arg-type]


def _no_network(*_: object) -> None:
    raise AssertionError("the game asked the network")
