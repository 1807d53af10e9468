"""Reads the parameters of a ``_target_`` class or function from its source code, without importing it. So a typo in a
configuration is found before torch is loaded.
"""

from __future__ import annotations

import ast
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_NAMES: dict[str, Any] = {
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union")},
    **{kind.__name__: kind for kind in (int, float, str, bool, list, tuple, dict, set)},
    "Sequence": Sequence,
    "Mapping": Mapping,
    "Path": Path,
    "None": None,
}


class TargetError(LookupError):
    """Raised if a dotted path does not name a class or function."""


@dataclass(slots=True)
class Parameter:
    """One parameter of a constructor. ``annotation`` is ``Any`` if the type cannot be resolved without an import."""

    annotation: Any
    required: bool


@dataclass(slots=True)
class Signature:
    """The keyword parameters of the class or function ``name``."""

    name: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    accepts_any: bool = False  # whether the class or function takes **kwargs
    is_dataclass: bool = False


@dataclass(frozen=True, slots=True)
class _Definition:
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    module: str


@cache
def signature_of(target: str) -> Signature:
    """Returns the signature of the class or function at a dotted path.

    Raises:
        TargetError: there is no such class or function; the message says which part of the path is missing.
    """
    found = _find(target)
    if isinstance(found.node, ast.ClassDef):
        return _class_signature(found)
    return _function_signature(found.node, found.module, bound=False)


@cache
def _source(module: str) -> tuple[ast.Module, bool] | None:
    """Returns a module's syntax tree and whether the module is a package, or None if there is no such Python file."""
    top, *rest = module.split(".")
    spec = PathFinder.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    for part in rest:
        if path.name != "__init__.py":
            return None
        folder = path.parent
        path = folder / part / "__init__.py"
        if not path.is_file():
            path = folder / f"{part}.py"
    if path.suffix != ".py" or not path.is_file():
        return None
    return ast.parse(path.read_text(encoding="utf-8")), path.name == "__init__.py"


def _find(target: str) -> _Definition:
    module, _, name = target.rpartition(".")
    if not module:
        raise TargetError(f"'{target}' is not a dotted path of a class or function")
    definition = _find_in(module, name, frozenset())
    if definition is not None:
        return definition
    if _source(module) is None:
        raise TargetError(f"there is no module '{module}'")
    raise TargetError(f"module '{module}' does not define '{name}'")


def _find_in(module: str, name: str, seen: frozenset[tuple[str, str]]) -> _Definition | None:
    source = _source(module)
    if source is None or (module, name) in seen:
        return None
    tree, is_package = source
    seen = seen | {(module, name)}
    for node in _statements(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return _Definition(node, module)
        if isinstance(node, ast.ImportFrom):
            origin = _absolute(node, module, is_package)
            for alias in node.names:
                if alias.name == "*" or (alias.asname or alias.name) == name:
                    found = _find_in(origin, name if alias.name == "*" else alias.name, seen)
                    if found is not None:
                        return found
    return None


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Returns the top-level statements of a module, including those under ``if`` and ``try``, last first: the last
    definition of a name counts.
    """
    flat: list[ast.stmt] = []
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        flat.append(node)
        if isinstance(node, ast.If | ast.Try):
            handled = [item for handler in getattr(node, "handlers", []) for item in handler.body]
            waiting = [*node.body, *handled, *node.orelse, *waiting]
    return flat[::-1]


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*base, node.module] if node.module else base)


def _class_signature(found: _Definition) -> Signature:
    node = found.node
    assert isinstance(node, ast.ClassDef)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return _dataclass_signature(found)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            signature = _function_signature(item, found.module, bound=True)
            signature.name = node.name
            return signature
    for base in _bases(found):
        signature = _class_signature(base)
        return Signature(node.name, signature.parameters, signature.accepts_any, signature.is_dataclass)
    return Signature(node.name, accepts_any=bool(node.bases))  # a base class that was not found may accept any argument


def _bases(found: _Definition) -> list[_Definition]:
    assert isinstance(found.node, ast.ClassDef)
    bases = []
    for base in found.node.bases:
        name = ast.unparse(base).split("[")[0]
        definition = _find_in(found.module, name, frozenset()) if "." not in name else None
        if definition is not None and isinstance(definition.node, ast.ClassDef) and name not in ("Protocol", "Generic"):
            bases.append(definition)
    return bases


def _dataclass_signature(found: _Definition) -> Signature:
    assert isinstance(found.node, ast.ClassDef)
    signature = Signature(found.node.name, is_dataclass=True)
    for base in reversed(_bases(found)):
        inherited = _class_signature(base)
        if inherited.is_dataclass:
            signature.parameters.update(inherited.parameters)
    for item in found.node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        options: dict[str | None, ast.expr] = {}
        if isinstance(item.value, ast.Call) and ast.unparse(item.value.func).endswith("field"):
            options = {keyword.arg: keyword.value for keyword in item.value.keywords}
            required = not {"default", "default_factory"} & options.keys()
        else:
            required = item.value is None
        is_field = "ClassVar" not in ast.unparse(item.annotation)
        if is_field and not ("init" in options and ast.unparse(options["init"]) == "False"):
            signature.parameters[item.target.id] = Parameter(_annotation(item.annotation, found.module), required)
    return signature


def _function_signature(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str, bound: bool) -> Signature:
    signature = Signature(node.name, accepts_any=node.args.kwarg is not None)
    positional = [*node.args.posonlyargs, *node.args.args]
    required = len(positional) - len(node.args.defaults)
    for i, argument in enumerate(positional):
        if not (bound and i == 0):
            signature.parameters[argument.arg] = Parameter(_annotation(argument.annotation, module), i < required)
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        signature.parameters[argument.arg] = Parameter(_annotation(argument.annotation, module), default is None)
    return signature


class _Scope(dict[str, Any]):
    """Resolves the names in a type annotation: those in ``_NAMES``, and aliases such as ``X = Literal[...]`` in the
    module that contains the annotation.
    """

    def __init__(self, module: str) -> None:
        super().__init__(_NAMES)
        self.module = module

    def __missing__(self, name: str) -> Any:
        return _alias(self.module, name)


def _annotation(node: ast.expr | None, module: str) -> Any:
    """Returns the type of an annotation, or ``Any`` if it contains names that :class:`_Scope` cannot resolve."""
    if node is None:
        return Any
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    code = compile(ast.Expression(node), module, "eval")
    try:
        return eval(code, {"__builtins__": {}}, _Scope(module))
    except (AttributeError, TypeError):
        return Any


@cache
def _alias(module: str, name: str) -> Any:
    source = _source(module)
    if source is None:
        return Any
    tree, is_package = source
    for node in _statements(tree):
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return _annotation(node.value, module)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _alias(_absolute(node, module, is_package), alias.name)
    return Any
