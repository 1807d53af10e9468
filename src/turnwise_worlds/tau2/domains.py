"""The domains of tau2-bench: the package, tables that episodes share, tools, and tasks."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
from collections import ChainMap
from collections.abc import Callable, Coroutine, ItemsView, Mapping, MutableMapping, Sequence, ValuesView
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args

from pydantic import BaseModel

from turnwise.data.tool_schema import make_tool, misfits, tool_of
from turnwise.env import EnvironmentFault
from turnwise.errors import InputError
from turnwise.files import read_yaml
from turnwise.types import ToolCall
from turnwise_worlds.tool_environment import Tools

INSTALL = "install the required versions with `make tau2`"
Domain = Literal["airline", "retail", "telecom"]
DOMAINS: tuple[Domain, ...] = get_args(Domain)
SOLO = ("telecom",)  # domains with a ticket and without a user; the agent itself operates the customer's phone
_ABOUT: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("domains.yaml"))
FREE = {domain: tuple(map(str, about["free"])) for domain, about in _ABOUT.items()}

_IMPORTING = threading.Lock()  # modules of inspect-ai import each other, so two threads must not import them at once


class MissingTau2Error(InputError):
    """The package inspect-evals, or a library that it imports, is not installed."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    tools: Tools
    functions: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]]  # name of a tool -> the benchmark's function


def root() -> Path:
    missing = [name for name in ("inspect_evals", "inspect_ai") if find_spec(name) is None]
    if missing:
        names = " and ".join(name.replace("_", "-") for name in missing)
        raise MissingTau2Error(f"env=tau2 needs packages that are not installed here: {names}; {INSTALL}")
    spec = find_spec("inspect_evals")
    places = list(spec.submodule_search_locations or ()) if spec else []
    folder = next((Path(place) / "tau2" for place in places if (Path(place) / "tau2" / "data").is_dir()), None)
    if folder is None:
        raise MissingTau2Error(f"env=tau2: the installed version of inspect-evals has no tau2 data; {INSTALL}")
    return folder


def of_package(module: str, name: str) -> Any:
    root()
    try:
        with _IMPORTING:
            return getattr(import_module(f"inspect_evals.tau2.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise MissingTau2Error(f"env=tau2: the installed inspect-evals cannot be used ({error}); {INSTALL}") from error


@lru_cache(maxsize=len(DOMAINS))
def toolbox(domain: str) -> Toolbox:
    """Returns the tools of a domain. For telecom, these include the tools of the customer's phone."""
    makers = [maker for place in _ABOUT[domain]["tools"] for maker in of_package(*place)]
    from inspect_ai.tool import ToolDef

    functions = {(definition := ToolDef(made)).name: (made, definition) for made in (maker() for maker in makers)}
    tools = tuple(
        tool_of(name, definition.description, definition.parameters.model_dump(exclude_none=True))
        for name, (_, definition) in functions.items()
    )
    return Toolbox(tools, {name: made for name, (made, _) in functions.items()})


def opener(domain: str) -> Callable[[], Any]:
    """A function that loads a domain's databases into the current store and returns the object that runs its tools."""
    open_database: Callable[[], Any] = of_package(*_ABOUT[domain]["opener"])
    return open_database


@lru_cache(maxsize=len(DOMAINS))
def policy(domain: str) -> str:
    """Returns the company's rules; for telecom those of solo mode and the technical support manual."""
    return "\n\n".join(_text(domain, name).strip() for name in _ABOUT[domain]["policy"])


@lru_cache(maxsize=len(DOMAINS))
def splits(domain: str) -> Mapping[str, tuple[str, ...]]:
    shipped = json.loads(_text(domain, "split_tasks.json"))
    return {name: tuple(map(str, shipped[name])) for name in ("train", "test")}


@lru_cache(maxsize=len(DOMAINS))
def task_records(domain: str) -> Mapping[str, Mapping[str, Any]]:
    named = {name for ids in splits(domain).values() for name in ids}
    records = {str(record["id"]): record for record in json.loads(_text(domain, "tasks.json"))}
    if lost := named - records.keys():
        raise MissingTau2Error(
            f"env=tau2: the domain {domain} has no task {min(lost)} in the installed inspect-evals; {INSTALL}"
        )
    return {name: record for name, record in records.items() if name in named}


def _text(domain: str, name: str) -> str:
    path = root() / "data" / "domains" / domain / name
    packed = path.with_name(f"{name}.gz")
    try:
        return gzip.decompress(packed.read_bytes()).decode() if packed.is_file() else path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingTau2Error(
            f"{path}: the file is missing from the installed version of inspect-evals; {INSTALL}"
        ) from error


class Table:
    """The records that a database table has at the start of every episode. They are never changed."""

    __slots__ = ("_texts", "records")

    def __init__(self, records: dict[str, Any]) -> None:
        self.records = records
        self._texts: dict[str, str] = {}

    def text(self, key: str) -> str | None:
        if key in self.records and key not in self._texts:
            self._texts[key] = text_of(self.records[key])
        return self._texts.get(key)


class Records(ChainMap[str, Any]):
    """One episode's view of a table. A record that is accessed by key is the episode's own copy and may be changed;
    ``values`` and ``items`` are for reading. A deep copy copies no records: each side does at the next access by key.
    """

    def __init__(self, table: Table, frozen: MutableMapping[str, Any] | None = None) -> None:
        super().__init__({}, frozen or {}, table.records)  # own copies, changed records before the last copy, the rest
        self._table = table

    def __getitem__(self, key: str) -> Any:
        own = self.maps[0]
        if key not in own:
            own[key] = deepcopy(self.peek(key))
        return own[key]

    def _refuse(self, *given: Any) -> NoReturn:
        raise TypeError("a record of the benchmark cannot be deleted")

    __delitem__ = pop = popitem = clear = _refuse  # type: ignore[assignment]

    def peek(self, key: str) -> Any:
        return self.look()[key]

    def values(self) -> ValuesView[Any]:
        return self.look().values()

    def items(self) -> ItemsView[str, Any]:
        return self.look().items()

    def __deepcopy__(self, memo: dict[int, Any]) -> Records:
        if self.maps[0]:
            self.maps[:2] = {}, {**self.maps[1], **self.maps[0]}
        return Records(self._table, self.maps[1])

    def look(self) -> Mapping[str, Any]:
        return ChainMap(*self.maps)

    def changes(self) -> dict[str, str]:
        """Returns the records that this episode has changed or added: key -> the record as text."""
        texts = {key: text_of(self.peek(key)) for key in {**self.maps[1], **self.maps[0]}}
        return {key: text for key, text in texts.items() if text != self._table.text(key)}


def text_of(record: Any) -> str:
    """Returns a record as the JSON text that the benchmark hashes, in which 5 differs from 5.0."""
    return json.dumps(record.model_dump(warnings=False), sort_keys=True, default=str)


if TYPE_CHECKING:
    from inspect_ai.util import Store

T = TypeVar("T")
FAILED = "Error: "
# tools with these prefixes change nothing
READS = ("calculate", "can_", "check_", "find_", "get_", "list_", "run_", "search_")
_SHOWN = 500  # maximum length of an error message in characters
_RANDOM_BILL = re.compile(r"B[0-9a-f]{8}")
# name under which inspect-ai's store holds the phone company's database
_BILLS = "TelecomAgentTools:TelecomAgentTools:db"


class DomainDatabases:
    __slots__ = ("domain", "store")

    def __init__(self, domain: str, store: Store) -> None:
        self.domain, self.store = domain, store

    @classmethod
    def fresh(cls, domain: str) -> DomainDatabases:
        return cls(domain, pristine_databases(domain)).fork()

    def fork(self) -> DomainDatabases:
        """Returns an independent copy of the databases. Records are copied only when they are next accessed by key."""
        from inspect_ai.util import Store

        return DomainDatabases(self.domain, Store(dict(self.store.items())))  # Store makes a deep copy of its argument

    def call(self, call: ToolCall) -> str:
        box = toolbox(self.domain)
        if problems := misfits(call, box.tools):
            return _error("; ".join(problems))
        from inspect_ai.model._call_tools import tool_params

        function, before = box.functions[call.name], self._bills()
        try:
            answer = self.within(lambda: _result(function(**tool_params(dict(call.arguments), function))))
        except EnvironmentFault:
            raise
        except OSError as error:
            raise EnvironmentFault(f"tau2 {self.domain}, {call.name}: {error}") from error
        except Exception as error:  # a tool may raise any exception, and the policy sees its text
            self.opened()  # raises an EnvironmentFault if the databases, and not the call, have failed
            return _error(str(error) or type(error).__name__)
        if self.domain in SOLO and not call.name.startswith(READS):
            self.opened()  # passes the company's changes on to the phone at once
            self._name_bills(before)
        return answer if isinstance(answer, str) else json.dumps(answer)

    def opened(self) -> Any:
        """Returns what runs the tools. In telecom, changes are first passed on between the two databases."""
        try:
            return self.within(opener(self.domain))
        except Exception as error:  # no action of the policy should cause this
            raise EnvironmentFault(f"tau2 {self.domain}: the databases cannot be used ({error})") from error

    def within(self, function: Callable[[], T]) -> T:
        from inspect_ai.util._store import init_subtask_store

        def run() -> T:
            init_subtask_store(self.store)
            return function()

        return copy_context().run(run)

    def state(self) -> Mapping[str, Any]:
        changed: dict[str, Any] = {}
        for name, value in self.store.items():
            if not isinstance(value, BaseModel):
                continue
            fields = {field: getattr(value, field) for field in type(value).model_fields}
            tables = {field: table.changes() for field, table in fields.items() if isinstance(table, Records)}
            changed[name] = tables or value.model_dump(mode="json", warnings=False)
        return changed

    def same_state(self, other: DomainDatabases) -> bool:
        return self.state() == other.state()

    same_place = same_state  # there is no hidden state: equal states give equal answers from now on

    def table(self, name: str) -> Mapping[str, Any]:
        """Returns a table of the company's database, such as ``users``, for reading only."""
        tables = (getattr(value, name, None) for value in self.store.values() if isinstance(value, BaseModel))
        return next(table for table in tables if isinstance(table, Records)).look()

    def _bills(self) -> set[str]:
        return {bill.bill_id for bill in self.store.get(_BILLS).bills} if self.domain in SOLO else set()

    def _name_bills(self, before: set[str]) -> None:
        database = self.store.get(_BILLS)
        for bill in database.bills:
            if bill.bill_id not in before and _RANDOM_BILL.fullmatch(bill.bill_id):
                name = f"B{hashlib.sha256(f'{bill.customer_id}/{len(before)}'.encode()).hexdigest()[:8]}"
                for customer in database.customers:
                    customer.bill_ids = [name if known == bill.bill_id else known for known in customer.bill_ids]
                bill.bill_id = name


@lru_cache(maxsize=len(DOMAINS))
def pristine_databases(domain: str) -> Store:
    """Returns the store with a domain's databases in the shipped state, whose large tables all episodes share."""
    open_it = opener(domain)
    from inspect_ai.util import Store

    world = DomainDatabases(domain, Store())
    world.within(open_it)
    base = of_package("environment.db", "DB")
    for name, value in list(world.store.items()):
        fields = {field: getattr(value, field) for field in type(value).model_fields} if isinstance(value, base) else {}
        if fields and all(isinstance(rows, dict) for rows in fields.values()):
            shared = {field: Records(Table(rows)) for field, rows in fields.items()}
            world.store.set(name, type(value).model_construct(**shared))
    return world.store


def _result(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise EnvironmentFault(
        "tau2: a tool waits for something, so the installed version of inspect-evals is not supported; install the "
        "required version with `make tau2`"
    )


def _error(message: str) -> str:
    return FAILED + (message if len(message) <= _SHOWN else message[:_SHOWN] + " ...")


def prepare_databases(world: DomainDatabases, actions: Sequence[Mapping[str, Any]]) -> None:
    """Applies the actions that create a task's start state, for example a wrong setting or an unpaid bill."""
    if not actions:
        return
    perform, call = of_package("telecom.solver", "perform_action"), of_package("data_model.tasks", "EnvFunctionCall")
    tools = world.opened()
    try:
        for action in actions:
            world.within(partial(perform, tools, call.model_validate(action)))
    except Exception as error:
        raise EnvironmentFault(f"tau2 {world.domain}: the task's start state cannot be created ({error})") from error


TRANSFER = "transfer_to_human_agents"
# a tool of solo mode, in which only the agent can end the episode
DONE = make_tool("done", "End the work on the ticket. Call this alone, once the ticket is solved.")


@dataclass(frozen=True, slots=True)
class Gold:
    """One of the tool calls that the benchmark lists as a task's solution."""

    call: ToolCall
    compared: tuple[str, ...] | None = None  # names of the arguments that the benchmark compares; None means all

    def matches(self, call: ToolCall) -> bool:
        """As in the benchmark, the elements of a list may be in any order, and of a transfer only the name counts."""
        if call.name != self.call.name:
            return False
        if call.name == TRANSFER or self.compared == ():
            return True
        made, wanted = dict(call.arguments), dict(self.call.arguments)
        if self.compared is not None:
            made, wanted = ({name: each.get(name) for name in self.compared} for each in (made, wanted))
        return bool(of_package("utils", "deep_equal_unordered")(made, wanted))


@dataclass(frozen=True, slots=True)
class Tau2Problem:
    """A task: ``start`` are the databases, which are never changed, ``gold`` the calls of the solution, ``scenario``
    the instructions to the user, ``ticket`` the agent's text in solo mode, ``said`` what the agent has to say.
    ``required``: it has to make all calls in ``gold``. Without ``assertions``, the databases must be as after ``gold``.
    """

    domain: str
    start: DomainDatabases
    gold: tuple[Gold, ...]
    scenario: Mapping[str, Any]
    ticket: str
    said: tuple[str, ...]
    required: bool
    assertions: tuple[Mapping[str, Any], ...] | None

    @property
    def solo(self) -> bool:
        return self.domain in SOLO

    @property
    def tools(self) -> Tools:
        return (*toolbox(self.domain).tools, DONE) if self.solo else toolbox(self.domain).tools


@lru_cache(maxsize=256)
def problem_of(domain: str, name: str) -> Tau2Problem:
    if domain not in DOMAINS or name not in task_records(domain):
        raise ValueError(f"tau2 has no task {domain}/{name}")
    record = task_records(domain)[name]
    criteria: Mapping[str, Any] = record["evaluation_criteria"]
    start = DomainDatabases.fresh(domain)
    prepare_databases(start, (record.get("initial_state") or {}).get("initialization_actions") or ())
    basis = criteria.get("reward_basis") or ("DB", "COMMUNICATE")
    return Tau2Problem(
        domain=domain,
        start=start,
        gold=tuple(map(_gold, criteria.get("actions") or ())),
        scenario=record["user_scenario"],
        ticket=record.get("ticket") or "",
        said=tuple(criteria.get("communicate_info") or ()) if "COMMUNICATE" in basis else (),
        required="ACTION" in basis,
        assertions=None if "DB" in basis else tuple(criteria.get("env_assertions") or ()),
    )


def _gold(action: Mapping[str, Any]) -> Gold:
    compared = action.get("compare_args")
    return Gold(ToolCall(action["name"], action["arguments"]), None if compared is None else tuple(compared))


_PHONE = re.compile(r"\d{3}-\d{3}-\d{4}")


def customer_of(problem: Tau2Problem) -> str:
    """Returns the identifier of a task's customer; empty if the identifier cannot be found."""
    if problem.solo:
        answers = (problem.start.fork().call(read) for read in by_phone(problem))
        return next((json.loads(answer)["customer_id"] for answer in answers if not answer.startswith(FAILED)), "")
    table, name = ("orders", "order_id") if problem.domain == "retail" else ("reservations", "reservation_id")
    for gold in problem.gold:
        arguments = gold.call.arguments
        if record := problem.start.table(table).get(str(arguments.get(name))):
            return str(record.user_id)
        if arguments.get("user_id") in problem.start.table("users"):
            return str(arguments["user_id"])
    return ""


def by_phone(problem: Tau2Problem) -> list[ToolCall]:
    return [ToolCall("get_customer_by_phone", {"phone_number": number}) for number in _PHONE.findall(problem.ticket)]
