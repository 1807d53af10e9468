"""Generates the user requests in the short tasks (level ``tiny``) of ``env=bfcl``.

Each kind of request has a function that draws the initial state of one API, the request, and the calls that fulfil the
request. A later call may need a value from an earlier answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.envs.dialogues.problem import UserTurn, turn_of


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


# -- files


def _files(rng: random.Random, names: Names) -> tuple[dict[str, Any], str, str, str]:
    """Returns the initial state of the file system, the names of its two folders, and the name of a file.

    The file is in the first of the two folders and not in the second.
    """
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
    for name in contents:
        if name != here:
            contents[name]["contents"].pop(file, None)
    return {"root": {"root": {"type": "directory", "contents": contents}}}, here, there, file


def _remove(rng: random.Random, names: Names) -> Request:
    config, here, _, file = _files(rng, names)
    return config, turn_of(f"remove {file} in {here}", ("cd", {"folder": here}), ("rm", {"file_name": file}))


def _read(rng: random.Random, names: Names) -> Request:
    config, here, _, file = _files(rng, names)
    return config, turn_of(f"show {file} in {here}", ("cd", {"folder": here}), ("cat", {"file_name": file}))


def _find(rng: random.Random, names: Names) -> Request:
    config, here, _, file = _files(rng, names)
    calls = ("find", {"name": file}), ("cd", {"folder": here}), ("rm", {"file_name": file})
    return config, turn_of(f"find {file} and remove it", *calls)


def _move(rng: random.Random, names: Names) -> Request:
    config, here, there, file = _files(rng, names)
    calls = ("cd", {"folder": here}), ("mkdir", {"dir_name": there}), ("mv", {"source": file, "destination": there})
    return config, turn_of(f"in {here} make {there} and move {file} to it", *calls)


# -- tickets


def _tickets(rng: random.Random, names: Names) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the initial state of the ticket API, with two open tickets of a user, and one of the two tickets."""
    numbers = sorted(rng.sample(range(1, 10), 2))
    queue = [
        {
            "id": number,
            "title": rng.choice(names.titles),
            "status": "Open",
            "priority": rng.randint(1, 4),
            "created_by": names.people[0],
        }
        for number in numbers
    ]
    config = {"ticket_queue": queue, "ticket_counter": 10, "current_user": names.people[0]}
    return config, rng.choice(queue)


def _close(rng: random.Random, names: Names) -> Request:
    config, ticket = _tickets(rng, names)
    return config, turn_of(f"close ticket {ticket['id']}", ("close_ticket", {"ticket_id": ticket["id"]}))


def _resolve(rng: random.Random, names: Names) -> Request:
    config, ticket = _tickets(rng, names)
    word = rng.choice(names.words)
    calls = ("resolve_ticket", {"ticket_id": ticket["id"], "resolution": word})
    return config, turn_of(f"resolve ticket {ticket['id']} with {word}", calls)


def _raise(rng: random.Random, names: Names) -> Request:
    config, ticket = _tickets(rng, names)
    updates = {"priority": ticket["priority"] + 1}
    calls = (
        ("get_ticket", {"ticket_id": ticket["id"]}),
        ("edit_ticket", {"ticket_id": ticket["id"], "updates": updates}),
    )
    return config, turn_of(f"add one to the priority of ticket {ticket['id']}", *calls)


def _create(rng: random.Random, names: Names) -> Request:
    config, _ = _tickets(rng, names)
    title, priority = rng.choice(names.titles), rng.randint(2, 5)
    calls = ("create_ticket", {"title": title, "priority": priority})
    return config, turn_of(f"create ticket {title} of priority {priority}", calls)


# -- cars


def _car(rng: random.Random) -> dict[str, Any]:
    return {
        "fuelLevel": float(rng.randint(1, 20)),
        "doorStatus": {"driver": "locked", "passenger": "locked", "rear_left": "locked", "rear_right": "locked"},
        "remainingUnlockedDoors": 0,
    }


def _start(rng: random.Random, names: Names) -> Request:
    calls = ("pressBrakePedal", {"pedalPosition": 1}), ("startEngine", {"ignitionMode": "START"})
    return _car(rng), turn_of("press the brake and start the car", *calls)


def _fill(rng: random.Random, names: Names) -> Request:
    amount = rng.randint(1, 20)
    return _car(rng), turn_of(f"fill in {amount} gallons", ("fillFuelTank", {"fuelAmount": amount}))


def _fill_up(rng: random.Random, names: Names) -> Request:
    config = _car(rng)
    wanted = rng.randint(21, 40)
    calls = (
        ("displayCarStatus", {"option": "fuel"}),
        ("fillFuelTank", {"fuelAmount": wanted - int(config["fuelLevel"])}),
    )
    return config, turn_of(f"fill up to {wanted} gallons", *calls)


def _lights(rng: random.Random, names: Names) -> Request:
    mode = rng.choice(["on", "off"])
    config = {**_car(rng), "headLightStatus": "off" if mode == "on" else "on"}
    return config, turn_of(f"turn the lights {mode}", ("setHeadlights", {"mode": mode}))


# -- stocks


def _market(rng: random.Random, names: Names) -> tuple[dict[str, Any], list[str]]:
    """Returns the initial state of the trading API and the names of three stocks. The first two stocks are watched."""
    symbols = rng.sample(names.stocks, 3)
    config = {
        "stocks": {symbol: {"price": rng.randint(2, 30)} for symbol in symbols},
        "watch_list": symbols[:2],
        "authenticated": True,
        "account_info": {"balance": 1000},
        "orders": {},
        "order_counter": rng.randint(1, 9),
    }
    return config, symbols


def _watch(rng: random.Random, names: Names) -> Request:
    config, symbols = _market(rng, names)
    return config, turn_of(f"watch {symbols[2]}", ("add_to_watchlist", {"stock": symbols[2]}))


def _unwatch(rng: random.Random, names: Names) -> Request:
    config, symbols = _market(rng, names)
    return (config, turn_of(f"no longer watch {symbols[0]}", ("remove_stock_from_watchlist", {"symbol": symbols[0]})))


def _buy(rng: random.Random, names: Names) -> Request:
    config, symbols = _market(rng, names)
    symbol, amount = rng.choice(symbols), rng.randint(2, 9)
    order = {"order_type": "Buy", "symbol": symbol, "price": config["stocks"][symbol]["price"], "amount": amount}
    return (
        config,
        turn_of(f"buy {amount} {symbol} at its price", ("get_stock_info", {"symbol": symbol}), ("place_order", order)),
    )


# -- messages


def _send(rng: random.Random, names: Names) -> Request:
    people = rng.sample(names.people, 3)
    numbers = rng.sample(range(1, 10), 3)
    users = {person: f"U{number}" for person, number in zip(people, numbers, strict=True)}
    config = {"user_map": users, "user_count": 3, "inbox": [], "message_count": 0, "current_user": users[people[0]]}
    word = rng.choice(names.words)
    calls = ("get_user_id", {"user": people[1]}), ("send_message", {"receiver_id": users[people[1]], "message": word})
    return config, turn_of(f"send {word} to {people[1]}", *calls)


# -- sums


def _mean(rng: random.Random, names: Names) -> Request:
    numbers = [rng.randint(1, 20) for _ in range(3)]
    return {}, turn_of(f"mean of {', '.join(map(str, numbers))}", ("mean", {"numbers": numbers}))


def _compute(rng: random.Random, names: Names) -> Request:
    word, function = rng.choice([("plus", "add"), ("minus", "subtract"), ("times", "multiply"), ("over", "divide")])
    a, b = rng.randint(2, 40), rng.randint(2, 9)
    return {}, turn_of(f"{a} {word} {b}", (function, {"a": a, "b": b}))


FAMILIES: Mapping[str, tuple[Family, ...]] = {
    "GorillaFileSystem": (_remove, _read, _find, _move),
    "TicketAPI": (_close, _resolve, _raise, _create),
    "VehicleControlAPI": (_start, _fill, _fill_up, _lights),
    "TradingBot": (_watch, _unwatch, _buy),
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
