from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from turnwise.config.signature import TargetError, signature_of

PACKAGE = {
    "__init__.py": "from .parts import Part as Exported\nfrom .star import *\n",
    "kinds.py": "from typing import Literal\nKind = Literal['a', 'b']\n",
    "star.py": "def starred(x: int): ...\n",
    "parts.py": """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import ClassVar, Optional, Protocol
from signed.kinds import Kind as Sort
import unknown_library

Level = int

class Base(Protocol):
    def __init__(self, never: int) -> None: ...

@dataclass(frozen=True)
class Root:
    first: int
    shared: ClassVar[int] = 3

@dataclass(frozen=True)
class Part(Root):
    sort: Sort = "a"
    level: Level = 0
    items: list[int] = field(default_factory=list)
    hidden: int = field(init=False, default=1)
    device: unknown_library.Device | None = None
    must: float = field(kw_only=True)

class Plain(Base):
    def __init__(self, a: int, *, b: "Optional[str]" = None, c: bool, **rest: object) -> None: ...

class Heir(Plain):
    pass

def function(a, b: float = 1.0): ...

try:
    import faster
except ImportError:
    def fallback(n: int): ...
""",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "signed").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "signed" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_a_dataclass_has_its_fields_those_of_its_bases_and_their_types() -> None:
    found = signature_of("signed.Exported")
    assert (found.name, found.is_dataclass, found.accepts_any) == ("Part", True, False)
    assert {name: p.required for name, p in found.parameters.items()} == {
        "first": True,
        "sort": False,
        "level": False,
        "items": False,
        "device": False,
        "must": True,
    }
    assert found.parameters["sort"].annotation == Literal["a", "b"]
    assert found.parameters["level"].annotation is int
    assert found.parameters["items"].annotation == list[int]
    assert found.parameters["must"].annotation is float


@pytest.mark.usefixtures("package")
def test_a_class_has_its_initialisers_parameters_even_if_inherited() -> None:
    for name in ("Plain", "Heir"):
        found = signature_of(f"signed.parts.{name}")
        assert found.name == name
        assert found.accepts_any
        assert {key: p.required for key, p in found.parameters.items()} == {"a": True, "b": False, "c": True}
        assert found.parameters["b"].annotation == str | None


@pytest.mark.usefixtures("package")
def test_functions_star_imports_and_fallbacks_are_found() -> None:
    function = signature_of("signed.parts.function")
    assert function.parameters["a"].annotation is Any
    assert not function.parameters["b"].required
    assert "x" in signature_of("signed.starred").parameters
    assert "n" in signature_of("signed.parts.fallback").parameters


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("signed.parts.Pat", "module 'signed.parts' does not define 'Pat'"),
        ("signed.pats.Part", "there is no module 'signed.pats'"),
        ("nowhere_at_all.Part", "there is no module 'nowhere_at_all'"),
        ("Part", "'Part'"),
    ],
)
def test_what_is_not_there_is_named(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        signature_of(target)


def test_large_libraries_are_read_without_being_imported() -> None:
    program = (
        "import sys; from turnwise.config.signature import signature_of as s;"
        "assert not s('lightning.pytorch.Trainer').accepts_any;"
        "assert 'max_epochs' in s('lightning.pytorch.Trainer').parameters;"
        "assert 'save_top_k' in s('lightning.pytorch.callbacks.ModelCheckpoint').parameters;"
        "assert s('torch.optim.AdamW').parameters['lr'].required is False;"
        "assert not {'torch', 'lightning', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
