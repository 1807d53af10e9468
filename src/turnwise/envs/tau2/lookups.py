"""Finds the reads that a careful agent makes before a tool call. A read is a tool call that changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.envs.tau2.world import FAILED
from turnwise.types import ToolCall

if TYPE_CHECKING:
    from turnwise.envs.tau2.problem import Tau2Problem
    from turnwise.envs.tau2.session import Tau2Session

_IDENTIFIERS = ("_id", "_ids", "flight_number")  # parameters with these endings take their values from a database
_PHONE = re.compile(r"\d{3}-\d{3}-\d{4}")
_PHONE_CHECKS = (  # calls that check the customer's phone, the most informative calls first
    "check_network_status", "check_sim_status", "check_network_mode_preference", "check_data_restriction_status",
    "check_apn_settings", "check_wifi_calling_status", "check_vpn_status", "check_payment_request", "check_status_bar",
    "can_send_mms", "run_speed_test",
)  # fmt: skip


def unknown(session: Tau2Session, calls: Sequence[ToolCall]) -> set[str]:
    """Returns the identifiers in the arguments of ``calls``, and of the customer, that the agent has not read yet."""
    needed = {value for call in calls for value in identifiers(call.arguments)}
    if session.reference.customer:
        needed.add(session.reference.customer)
    return {value for value in needed if not any(value in text for text in session.shown)}


def lookup(session: Tau2Session, call: ToolCall, writes: bool) -> ToolCall | None:
    """Returns the next read that a careful agent makes before ``call``; None if the agent needs no further read.

    This is a read whose answer contains an identifier that the agent needs and does not know. If there is none and
    ``writes`` says that ``call`` changes the state, this is the first read whose answer ``call`` would change, unless
    the agent has already seen the present answer of this read.
    """
    before = session.world.fork()  # one copy is enough for all reads, because reads do not change it
    reads = [read for read in _reads(session, call) if read != call]
    if wanted := unknown(session, [call]):
        for read in reads:
            answer = "" if read.name in _PHONE_CHECKS else before.call(read)
            if any(value in answer for value in wanted) and not (answer.startswith(FAILED) or seen(session, answer)):
                return read
    if not writes:
        return None
    after = session.world.fork()
    after.call(call)
    for read in reads:
        answer = before.call(read)
        if not answer.startswith(FAILED) and answer != after.call(read):
            return None if seen(session, answer) else read
    return None


def seen(session: Tau2Session, answer: str) -> bool:
    """Returns whether a text that the agent has read contains ``answer``, the answer of a tool."""
    return any(answer in text for text in session.shown)


def identifiers(arguments: Mapping[str, Any]) -> set[str]:
    """Returns the values in a call's arguments that identify something in a database."""
    found: set[str] = set()
    for name, value in arguments.items():
        if isinstance(value, list):
            found |= {each for each in value if isinstance(each, str) and name.endswith(_IDENTIFIERS)}
            found |= {each for item in value if isinstance(item, Mapping) for each in identifiers(item)}
        elif isinstance(value, str) and (name == "id" or name.endswith(_IDENTIFIERS)):
            found.add(value)
    return found


def customer_of(problem: Tau2Problem) -> str:
    """Returns the identifier of a task's customer; empty if the identifier cannot be found."""
    if problem.solo:
        answers = (problem.start.fork().call(read) for read in _by_phone(problem))
        return next((json.loads(answer)["customer_id"] for answer in answers if not answer.startswith(FAILED)), "")
    table, name = ("orders", "order_id") if problem.domain == "retail" else ("reservations", "reservation_id")
    for gold in problem.gold:
        arguments = gold.call.arguments
        if record := problem.start.table(table).get(str(arguments.get(name))):
            return str(record.user_id)
        if arguments.get("user_id") in problem.start.table("users"):
            return str(arguments["user_id"])
    return ""


def _reads(session: Tau2Session, call: ToolCall) -> Iterator[ToolCall]:
    """Yields reads about a call and the customer, with only identifiers that the agent already knows as arguments."""
    found = {"airline": _airline, "retail": _retail, "telecom": _telecom}[session.reference.problem.domain]
    for name, arguments in found(session, call.arguments):
        read = ToolCall(name, arguments)
        if all(any(value in text for text in session.shown) for value in identifiers(arguments)):
            yield read


def _retail(session: Tau2Session, given: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    world, customer = session.reference.problem.start, session.reference.customer
    if user := world.table("users").get(customer):
        text = "\n".join(session.shown).lower()
        if user.email.lower() in text:
            yield "find_user_id_by_email", {"email": user.email}
        if user.address.zip in text and user.name.last_name.lower() in text:
            yield (
                "find_user_id_by_name_zip",
                {"first_name": user.name.first_name, "last_name": user.name.last_name, "zip": user.address.zip},
            )
        yield "get_user_details", {"user_id": customer}
    if order := world.table("orders").get(str(given.get("order_id"))):
        yield "get_order_details", {"order_id": order.order_id}
        if given.get("new_item_ids"):
            old = given.get("item_ids") or ()
            products = dict.fromkeys(item.product_id for item in order.items if item.item_id in old)
            yield from (("get_product_details", {"product_id": product}) for product in products)


def _airline(session: Tau2Session, given: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    world, customer = session.reference.problem.start, session.reference.customer
    if customer:
        yield "get_user_details", {"user_id": customer}
    if given.get("reservation_id") in world.table("reservations"):
        yield "get_reservation_details", {"reservation_id": given["reservation_id"]}
    for flight in given.get("flights") or ():
        if route := world.table("flights").get(flight.get("flight_number")):
            yield (
                "search_direct_flight",
                {"origin": route.origin, "destination": route.destination, "date": flight.get("date")},
            )


def _telecom(session: Tau2Session, given: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((read.name, dict(read.arguments)) for read in _by_phone(session.reference.problem))
    if "line_id" in given:
        yield "get_details_by_id", {"id": given["line_id"]}
        yield "get_data_usage", {"customer_id": given.get("customer_id"), "line_id": given["line_id"]}
    if "bill_id" in given:
        yield "get_details_by_id", {"id": given["bill_id"]}
    if "app_name" in given:
        yield "check_app_permissions", {"app_name": given["app_name"]}
    yield from ((name, {}) for name in _PHONE_CHECKS)


def _by_phone(problem: Tau2Problem) -> list[ToolCall]:
    return [ToolCall("get_customer_by_phone", {"phone_number": number}) for number in _PHONE.findall(problem.ticket)]
