"""States that are made when asked for are those of a list, wherever a run reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from turnwise.algo.states.batches import Batches
from turnwise.algo.states.expert_turns import ExpertTurns, expert_turns
from turnwise.algo.states.lazy import LazyStates, chosen, ids_of, lengths_of, places_of
from turnwise.algo.states.pivots import Pivots
from turnwise.algo.states.state_rule import Profile
from turnwise.config.settings import RolloutSettings
from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.read_records import UnusableError
from turnwise.engines.engine import Sampling
from turnwise.envs.household.environment import HouseholdEnv
from turnwise.errors import InputError
from turnwise.models.shipped import tiny_path
from turnwise.rollouts.demonstrate import demonstrated_paths
from turnwise.training.candidate_states import Steps, Turns, playable, trainable
from turnwise.types import State, Trajectory


@pytest.fixture(scope="module")
def chat() -> ChatTokens:
    return ChatTokens(AutoTokenizer.from_pretrained(tiny_path()))


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    world = HouseholdEnv(horizon=8)
    return [world.demonstrate(task, "clumsy") for task in world.tasks("train", 12)]


@pytest.fixture(scope="module")
def listed(chat: ChatTokens, trajectories: list[Trajectory]) -> list[State]:
    return [s for t in trajectories for s in expert_turns(t, chat.spines(t.messages, t.tools), chat.decode)]


@pytest.fixture(scope="module")
def lazy(chat: ChatTokens, trajectories: list[Trajectory], tmp_path_factory: pytest.TempPathFactory) -> Turns:
    demonstrations = Demonstrations(chat, tmp_path_factory.mktemp("shelf"))
    for trajectory in trajectories:
        demonstrations.add(trajectory)
    return Turns(demonstrations)


def test_the_states_are_the_same_and_found_by_their_ids(lazy: Turns, listed: list[State]) -> None:
    assert list(lazy) == listed and len(lazy) == len(listed)
    assert lazy[-1] == listed[-1] and lazy[3:9:2] == listed[3:9:2]
    assert [lazy.place(state.id) for state in listed] == list(range(len(listed)))
    last = listed[-1]
    for name in ("nobody#t0", f"{last.trajectory}#t{last.turn + 1}", f"{last.trajectory}#tx", str(last.trajectory)):
        assert lazy.place(name) is None


def test_batches_are_those_of_a_list(lazy: Turns, listed: list[State]) -> None:
    for size, spread in ((16, None), (16, 5), (1000, None)):
        found, wanted = Batches(lazy, 3, size, spread), Batches(listed, 3, size, spread)
        assert [found(i) for i in range(12)] == [wanted(i) for i in range(12)]


def test_rules_choose_the_same_and_make_no_state(
    lazy: Turns, listed: list[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = {s.id: Profile((float(i % 3 > 0), float(i % 4 > 1)), (0.0, 0.0)) for i, s in enumerate(listed)}
    rule = Pivots(k=2, keep="mixed")
    with monkeypatch.context() as patched:
        patched.setattr(Turns, "at", lambda self, place: pytest.fail("a state was made"))
        kept = rule.select(lazy, profiles)
        names, places = list(ids_of(kept)), [kept.place(name) for name in ids_of(kept)]  # type: ignore[attr-defined]
    wanted = list(rule.select(listed, profiles))
    assert 0 < len(wanted) < len(listed)
    assert list(kept) == wanted and names == [s.id for s in wanted] and places == list(range(len(wanted)))
    assert [Batches(kept, 0, 4)(i) for i in range(9)] == [Batches(wanted, 0, 4)(i) for i in range(9)]
    assert isinstance(kept, LazyStates) and kept.place(next(s.id for s in listed if s not in wanted)) is None
    assert list(ExpertTurns().select(lazy, {})) == listed


def test_chosen_of_a_list_is_a_list(listed: list[State]) -> None:
    assert chosen(listed, iter((1, 4))) == [listed[1], listed[4]]


def test_groups_are_trajectories(lazy: Turns, listed: list[State]) -> None:
    names = list(dict.fromkeys(state.trajectory for state in listed))
    assert np.array_equal(lazy.groups(), [names.index(state.trajectory) for state in listed])


def test_steps_are_found_by_the_ids_of_states(lazy: Turns, listed: list[State]) -> None:
    steps = Steps(lazy)
    assert len(steps) == len(listed) and list(steps) == [state.id for state in listed]
    assert all(steps[state.id].content == state.expert for state in listed)
    with pytest.raises(KeyError):
        steps["nobody#t0"]


def test_an_id_used_twice_is_refused_with_the_place_of_the_first(
    chat: ChatTokens, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    demonstrations = Demonstrations(chat, tmp_path)
    demonstrations.add(trajectories[0])
    with pytest.raises(UnusableError, match="already used at "):
        demonstrations.add(trajectories[0])
    assert len(demonstrations) == 1 and demonstrations.turns == demonstrations.starts[-1]


def rollout(max_length: int) -> RolloutSettings:
    return RolloutSettings(states=1, sampling=Sampling(temperature=1.0, max_tokens=24), max_length=max_length)


def test_histories_that_leave_no_room_for_an_action_are_left_out_and_told(lazy: Turns, listed: list[State]) -> None:
    lengths = [len(state.ids) for state in listed]
    assert lengths_of(lazy).tolist() == lengths_of(listed).tolist() == lengths
    limit = sorted(lengths)[len(lengths) // 2]
    said: list[str] = []
    for states in (lazy, listed):
        found = playable(states, rollout(limit + 24), said.append)
        assert list(found) == [state for state in listed if len(state.ids) <= limit]
        assert lengths_of(found).max() == limit and playable(found, rollout(limit + 24), said.append) is found
    assert len(said) == 2 and "rollout.max_length" in said[0]
    assert said[0].startswith(f"left out: {sum(n > limit for n in lengths)} of {len(lengths)} states")
    with pytest.raises(InputError, match=r"raise rollout\.max_length"):
        playable(lazy, rollout(min(lengths) + 23), said.append)


def test_demonstrated_turns_that_end_too_late_are_not_trained_on_and_told(lazy: Turns, listed: list[State]) -> None:
    ends = [len(state.ids) + len(state.expert_ids) for state in listed]
    assert lazy.ends().tolist() == ends == LazyStates.ends(lazy).tolist()
    limit = sorted(ends)[len(ends) // 2]
    said: list[str] = []
    found = trainable(lazy, rollout(limit), said.append)
    kept = [state for state, end in zip(listed, ends, strict=True) if end <= limit]
    assert list(found) == kept and list(demonstrated_paths(found)) == list(demonstrated_paths(kept))
    assert len(said) == 1 and "rollout.max_length" in said[0] and f"{len(ends) - len(kept)} of {len(ends)}" in said[0]
    assert trainable(found, rollout(limit), said.append) is found  # type: ignore[arg-type]
    assert trainable(lazy, rollout(max(ends)), said.append) is lazy and len(said) == 1
    with pytest.raises(InputError, match=r"raise rollout\.max_length"):
        trainable(lazy, rollout(min(ends) - 1), said.append)


def test_chosen_states_are_had_back_from_their_places(lazy: Turns, listed: list[State]) -> None:
    some = chosen(lazy, range(1, len(lazy), 3))
    for states in (lazy, listed, chosen(lazy, range(1, len(lazy)))):
        places_S = places_of(states, some)
        assert list(chosen(states, places_S.tolist())) == list(some)
    with pytest.raises(KeyError, match="#t"):
        places_of(some, lazy)
