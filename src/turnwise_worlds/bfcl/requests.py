"""The generated tasks of ``env=bfcl``: short requests over the real APIs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from turnwise.data.tool_schema import function_of
from turnwise.types import Task
from turnwise_worlds.bfcl.apis import Apis, tools_of_class
from turnwise_worlds.dialogues import (
    DialogueProblem,
    GeneratedTasks,
    UserTurn,
    split_of,
    turn_of,
    turns_data,
    turns_from,
)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of things in generated tasks. No name is both a training name and a held-out name."""

    folders: tuple[str, ...]
    files: tuple[str, ...]
    words: tuple[str, ...]
    titles: tuple[str, ...]
    stocks: tuple[str, ...]
    people: tuple[str, ...]


TRAINING = Names(
    ("docs", "work", "old", "lab", "home", "pics"),
    ("a.txt", "b.txt", "notes.txt", "plan.txt", "list.txt", "data.txt"),
    ("hello", "thanks", "yes", "no", "red", "blue", "green", "late"),
    ("printer", "screen", "desk", "phone", "door", "lamp"),
    ("AAA", "BBB", "CCC", "DDD", "EEE"),
    ("Ann", "Bob", "Cid", "Dan", "Eve"),
)
"""The names in tasks of the splits train and seen."""
HELD_OUT = Names(
    ("box", "mail", "play"),
    ("c.txt", "log.txt", "text.txt"),
    ("good", "bad", "white", "black"),
    ("chair", "mouse", "clock"),
    ("FFF", "GGG", "HHH"),
    ("Fay", "Gus", "Hal"),
)
"""The names in tasks of the split unseen."""
Request = tuple[Mapping[str, Any], UserTurn]
"""The initial state of one API, and the user's turn with its ground truth."""
Family = Callable[[random.Random, Names], Request]


Say = Callable[..., tuple[Any, ...]]
"""A function of a random generator, the names, and what the state has: the request, and the calls that fulfil it."""


def _family(state: Callable[[random.Random, Names], tuple[Any, ...]], say: Say) -> Family:
    def family(rng: random.Random, names: Names) -> Request:
        config, *values = state(rng, names)
        return config, turn_of(*say(rng, names, *values))

    return family


def _files(rng: random.Random, names: Names) -> tuple[dict[str, Any], str, str, str]:
    here, there = rng.sample(names.folders, 2)
    file, other = rng.sample(names.files, 2)

    def folder(*files: str) -> dict[str, Any]:
        return {
            "type": "directory",
            "contents": {f: {"type": "file", "content": rng.choice(names.words)} for f in files},
        }

    contents = {here: folder(file, other), there: folder(*rng.sample(names.files, rng.randint(0, 1)))}
    if rng.random() < 0.5:
        contents = dict(reversed(contents.items()))
    contents[there]["contents"].pop(file, None)
    return {"root": {"root": {"type": "directory", "contents": contents}}}, here, there, file


def _tickets(rng: random.Random, names: Names) -> tuple[dict[str, Any], dict[str, Any]]:
    owner = names.people[0]
    queue = [
        {
            "id": number,
            "title": rng.choice(names.titles),
            "status": "Open",
            "priority": rng.randint(1, 4),
            "created_by": owner,
        }
        for number in sorted(rng.sample(range(1, 10), 2))
    ]
    return {"ticket_queue": queue, "ticket_counter": 10, "current_user": owner}, rng.choice(queue)


def _create(rng: random.Random, names: Names, ticket: object) -> tuple[Any, ...]:
    title, priority = rng.choice(names.titles), rng.randint(2, 5)
    return f"create ticket {title} of priority {priority}", ("create_ticket", {"title": title, "priority": priority})


def _resolve(rng: random.Random, names: Names, ticket: Mapping[str, Any]) -> tuple[Any, ...]:
    word = rng.choice(names.words)
    call = "resolve_ticket", {"ticket_id": ticket["id"], "resolution": word}
    return f"resolve ticket {ticket['id']} with {word}", call


def _car(rng: random.Random, names: Names | None = None) -> tuple[dict[str, Any], int]:
    fuel = rng.randint(1, 20)
    doors = dict.fromkeys(("driver", "passenger", "rear_left", "rear_right"), "locked")
    return {"fuelLevel": float(fuel), "doorStatus": doors, "remainingUnlockedDoors": 0}, fuel


def _fill(rng: random.Random, names: Names) -> Request:
    amount = rng.randint(1, 20)
    return _car(rng)[0], turn_of(f"fill in {amount} gallons", ("fillFuelTank", {"fuelAmount": amount}))


def _fill_up(rng: random.Random, names: Names, fuel: int) -> tuple[Any, ...]:
    wanted = rng.randint(21, 40)
    call = "fillFuelTank", {"fuelAmount": wanted - fuel}
    return f"fill up to {wanted} gallons", ("displayCarStatus", {"option": "fuel"}), call


def _lights(rng: random.Random, names: Names) -> Request:
    mode = rng.choice(["on", "off"])
    config = {**_car(rng)[0], "headLightStatus": "off" if mode == "on" else "on"}
    return config, turn_of(f"turn the lights {mode}", ("setHeadlights", {"mode": mode}))


def _market(rng: random.Random, names: Names) -> tuple[dict[str, Any], list[str], Mapping[str, Any]]:
    symbols = rng.sample(names.stocks, 3)
    stocks = {symbol: {"price": rng.randint(2, 30)} for symbol in symbols}
    config = {
        "stocks": stocks,
        "watch_list": symbols[:2],
        "authenticated": True,
        "account_info": {"balance": 1000},
        "orders": {},
        "order_counter": rng.randint(1, 9),
    }
    return config, symbols, stocks


def _buy(rng: random.Random, names: Names, symbols: list[str], stocks: Mapping[str, Any]) -> tuple[Any, ...]:
    symbol, amount = rng.choice(symbols), rng.randint(2, 9)
    order = {"order_type": "Buy", "symbol": symbol, "price": stocks[symbol]["price"], "amount": amount}
    return f"buy {amount} {symbol} at its price", ("get_stock_info", {"symbol": symbol}), ("place_order", order)


def _send(rng: random.Random, names: Names) -> Request:
    people = rng.sample(names.people, 3)
    numbers = rng.sample(range(1, 10), 3)
    users = {person: f"U{number}" for person, number in zip(people, numbers, strict=True)}
    config = {"user_map": users, "user_count": 3, "inbox": [], "message_count": 0, "current_user": users[people[0]]}
    word = rng.choice(names.words)
    calls = ("get_user_id", {"user": people[1]}), ("send_message", {"receiver_id": users[people[1]], "message": word})
    return config, turn_of(f"send {word} to {people[1]}", *calls)


def _mean(rng: random.Random, names: Names) -> Request:
    numbers = [rng.randint(1, 20) for _ in range(3)]
    return {}, turn_of(f"mean of {', '.join(map(str, numbers))}", ("mean", {"numbers": numbers}))


def _compute(rng: random.Random, names: Names) -> Request:
    word, function = rng.choice([("plus", "add"), ("minus", "subtract"), ("times", "multiply"), ("over", "divide")])
    a, b = rng.randint(2, 40), rng.randint(2, 9)
    return {}, turn_of(f"{a} {word} {b}", (function, {"a": a, "b": b}))


# The parameters of the functions are a random generator, the names, and what the state has.
_OF_FILES: tuple[Say, ...] = (
    lambda r, n, here, there, file: (f"remove {file} in {here}", ("cd", {"folder": here}), ("rm", {"file_name": file})),
    lambda r, n, here, there, file: (f"show {file} in {here}", ("cd", {"folder": here}), ("cat", {"file_name": file})),
    lambda r, n, here, there, file: (
        f"find {file} and remove it", ("find", {"name": file}), ("cd", {"folder": here}), ("rm", {"file_name": file})),
    lambda r, n, here, there, file: (
        f"in {here} make {there} and move {file} to it", ("cd", {"folder": here}), ("mkdir", {"dir_name": there}),
        ("mv", {"source": file, "destination": there})),
)  # fmt: skip
_OF_TICKETS: tuple[Say, ...] = (
    lambda r, n, ticket: (f"close ticket {ticket['id']}", ("close_ticket", {"ticket_id": ticket["id"]})),
    _resolve,
    lambda r, n, ticket: (
        f"add one to the priority of ticket {ticket['id']}", ("get_ticket", {"ticket_id": ticket["id"]}),
        ("edit_ticket", {"ticket_id": ticket["id"], "updates": {"priority": ticket["priority"] + 1}})),
    _create,
)  # fmt: skip
_OF_STOCKS: tuple[Say, ...] = (
    lambda r, n, symbols, stocks: (f"watch {symbols[2]}", ("add_to_watchlist", {"stock": symbols[2]})),
    lambda r, n, symbols, stocks: (
        f"no longer watch {symbols[0]}", ("remove_stock_from_watchlist", {"symbol": symbols[0]})),
    _buy,
)  # fmt: skip
_START = (
    "press the brake and start the car",
    ("pressBrakePedal", {"pedalPosition": 1}),
    ("startEngine", {"ignitionMode": "START"}),
)

FAMILIES: Mapping[str, tuple[Family, ...]] = {
    "GorillaFileSystem": tuple(_family(_files, say) for say in _OF_FILES),
    "TicketAPI": tuple(_family(_tickets, say) for say in _OF_TICKETS),
    "VehicleControlAPI": (_family(_car, lambda *_: _START), _fill, _family(_car, _fill_up), _lights),
    "TradingBot": tuple(_family(_market, say) for say in _OF_STOCKS),
    "MessageAPI": (_send,),
    "MathAPI": (_mean, _compute),
}
SHOWN: Mapping[str, tuple[str, ...]] = {
    "GorillaFileSystem": ("cat", "cd", "find", "mkdir", "mv", "rm"),
    "TicketAPI": ("close_ticket", "create_ticket", "edit_ticket", "get_ticket", "resolve_ticket"),
    "VehicleControlAPI": ("displayCarStatus", "fillFuelTank", "pressBrakePedal", "setHeadlights", "startEngine"),
    "TradingBot": ("add_to_watchlist", "get_stock_info", "place_order", "remove_stock_from_watchlist"),
    "MessageAPI": ("get_user_id", "send_message"),
    "MathAPI": ("add", "divide", "mean", "multiply", "subtract"),
}
UNSEEN_PAIRS = (
    ("GorillaFileSystem", "TicketAPI"),
    ("VehicleControlAPI", "MathAPI"),
    ("TradingBot", "GorillaFileSystem"),
    ("TicketAPI", "TradingBot"),
)


PAIRED = 0.4  # fraction of the training tasks that have two requests
_HELD_OUT = tuple(name for names in asdict(HELD_OUT).values() for name in names)


@dataclass(frozen=True)
class TinyTasks(GeneratedTasks):
    """The generated tasks. One of ``unseen`` has two requests, whose pair of APIs no training task combines."""

    env, training, held_out = "bfcl", TRAINING, HELD_OUT

    def data(self, rng: random.Random, split: str, index: int, names: Names) -> dict[str, Any]:
        if split == "unseen":
            classes: tuple[str, ...] = rng.choice(UNSEEN_PAIRS)
        else:
            known = sorted(FAMILIES)
            pairs = [(a, b) for a in known for b in known if a != b and {a, b} not in map(set, UNSEEN_PAIRS)]
            classes = rng.choice(pairs) if rng.random() < PAIRED else (rng.choice(known),)
        requests = [rng.choice(FAMILIES[name])(rng, names) for name in classes]
        config = {name: config for name, (config, _) in zip(classes, requests, strict=True)}
        return {"classes": list(classes), "config": config, "turns": turns_data([turn for _, turn in requests])}

    def kind(self, data: Mapping[str, Any]) -> tuple[str, str]:
        return "tiny", "one_api" if len(data["classes"]) == 1 else "two_apis"

    def fits(self, data: Mapping[str, Any], split: str) -> bool:
        """A request of ``unseen`` contains a held-out name or, for requests without names, has a held-out hash."""
        turns = data["turns"]
        if split != "unseen":
            return split_of(turns) == split
        return split_of([turn for turn in turns if not any(name in turn["user"] for name in _HELD_OUT)]) == "seen"

    def problem(self, task: Task) -> DialogueProblem:
        classes = tuple(task.data["classes"])
        tools = [t for name in classes for t in tools_of_class(name) if function_of(t)["name"] in SHOWN[name]]
        return DialogueProblem(
            partial(Apis, classes, task.data["config"]), turns_from(task.data["turns"]), tuple(tools)
        )
