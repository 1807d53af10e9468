"""The databases behind the benchmark's tools: shared, never leaked into, alike in every replay, a fault where they fail."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from turnwise.env import EnvironmentFault
from turnwise.types import ToolCall
from turnwise_worlds.tau2 import domains as package
from turnwise_worlds.tau2.domains import DOMAINS, DomainDatabases, pristine_databases, toolbox

pytestmark = pytest.mark.extra("tau2")
USER = "yusuf_rossi_9620"
HOME = {"address1": "1 Elm St", "address2": "", "city": "Rome", "state": "NY", "country": "USA", "zip": "13440"}


def call(world, name, **arguments):
    return world.call(ToolCall(name, arguments))


def moved():
    world = DomainDatabases.fresh("retail")
    assert '"city":"Rome"' in call(world, "modify_user_address", user_id=USER, **HOME)
    return world


def test_an_episode_keeps_its_changes_to_itself():
    world = moved()
    assert list(world.state()["RetailAgentTools:RetailTools:db"]["users"]) == [USER]
    for other in (DomainDatabases.fresh("retail"), DomainDatabases("retail", pristine_databases("retail"))):
        assert '"city":"Philadelphia"' in call(other.fork(), "get_user_details", user_id=USER)
        assert other.same_state(DomainDatabases.fresh("retail")) and not other.same_state(world)


@pytest.mark.parametrize("domain", DOMAINS)
def test_nothing_that_is_called_reaches_what_episodes_share(domain):
    """Random calls with values out of the databases; a fresh state is the shipped one afterwards, to the last record."""
    rng = random.Random(domain)
    shipped = package.opener(domain)  # loads the databases again, into another store
    store = DomainDatabases(domain, type(pristine_databases(domain))())
    store.within(shipped)
    values = {
        "airline": ["8C8K4E", "LU15PA", "amelia_davis_8890", "gift_card_1647044", "HAT110", "2024-05-24", "economy", 1],
        "retail": ["#W8268610", "#W2702727", USER, "credit_card_9513926", ["9083642334"], "no longer needed"],
        "telecom": ["C1001", "L1002", "B1001", "messaging", "storage", "2g_only", 1.0, True],
    }[domain]
    for _ in range(10):
        world = DomainDatabases.fresh(domain)
        for tool in rng.sample(toolbox(domain).tools, 8):
            function = tool["function"]
            given = {name: rng.choice(values) for name in function["parameters"]["properties"]}
            assert isinstance(call(world, function["name"], **given), str)
    for name, value in store.store.items():
        if hasattr(value, "model_dump"):
            fresh = DomainDatabases.fresh(domain).store.get(name)
            for field in type(value).model_fields:
                told, true = getattr(fresh, field), getattr(value, field)
                assert dict(told.items()) == true if isinstance(true, dict) else told == true


def test_a_database_that_cannot_be_used_is_a_fault_and_no_answer(monkeypatch):
    world = DomainDatabases.fresh("telecom")
    monkeypatch.setattr(world.store.get("TelecomAgentTools:TelecomAgentTools:db"), "lines", [])
    world.store.get("TelecomUserTools:TelecomUserTools:db").surroundings.phone_number = "555-123-2002"
    for name in ("check_status_bar", "toggle_data"):
        with pytest.raises(EnvironmentFault, match="telecom: the databases cannot be used"):
            call(world, name)


def test_a_broken_vpn_is_broken_in_one_episode_only():
    """The original breaks the default that later connections use, and the default is shared within an episode."""
    world = DomainDatabases.fresh("telecom")
    tools = world.opened()
    world.within(tools.user_tools.break_vpn)
    fork = world.fork()
    for each in (world, fork):
        assert "POOR" in call(each, "check_vpn_status")
        call(each, "disconnect_vpn")
        call(each, "connect_vpn")
        assert "POOR" in call(each, "check_vpn_status")
    fresh = DomainDatabases.fresh("telecom")
    call(fresh, "connect_vpn")
    assert "EXCELLENT" in call(fresh, "check_vpn_status")


def test_episodes_in_threads_answer_as_one_after_the_other(world):
    tasks = world.tasks("train", 12)
    told = {task.id: world.demonstrate(task, "clumsy").messages for task in tasks}

    def replayed(task):
        session = world.reset(task)
        actions = [message["content"] for message in told[task.id] if message["role"] == "assistant"]
        return [session.step(action).observation for action in actions], session.world.state(), session.won

    alone = [replayed(task) for task in tasks]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(replayed, tasks * 3)) == alone * 3
