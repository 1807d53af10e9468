"""docs/troubleshooting.md: every command says what the page says that it says, and what a run may say is in the source."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from tests.configuration_files import READ

from turnwise.config.schema import compose_config
from turnwise.runs.claim_folder import claim

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^    \$ python (\S+) (.+)\n((?:    .+\n)+)", PAGE, re.MULTILINE)
SOURCE = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
TEMPLATES = {
    "no such trajectory file; correct data.file": "no such {kind}; correct {key} (the current folder"
}  # filled in


def test_the_page_shows_commands() -> None:
    assert len(SHOWN) >= 12
    assert PAGE.count("    $ ") == len(SHOWN)


@pytest.mark.parametrize(("script", "arguments", "said"), SHOWN, ids=[f"{s} {a}" for s, a, _ in SHOWN])
def test_a_command_says_what_the_page_says(
    script: str,
    arguments: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setenv("TURNWISE_TRACEBACK", "0")
    with claim(compose_config(["method=sft"], ROOT / "conf", read=READ)):  # a run that was begun, and has no result
        pass
    monkeypatch.setattr(sys, "argv", [script, *shlex.split(arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert ended.value.code == 2
    told = capsys.readouterr().err.rstrip("\n").splitlines()
    expected = [line[4:] for line in said.splitlines()]
    if expected[-1] == "...":
        expected, told = expected[:-1], told[: len(expected) - 1]
    assert len(told) == len(expected)
    for line, wanted in zip(told, expected, strict=True):
        assert line.startswith(wanted.removesuffix("...")) if wanted.endswith("...") else line == wanted


def test_what_a_run_may_say_is_in_the_source() -> None:
    rows = re.findall(r'^\| "(.+?)"', PAGE, re.MULTILINE)
    assert len(rows) >= 15
    joined = re.sub(r'"\s+f?"', "", SOURCE)  # strings that go on in the next line
    assert [words for words in rows if TEMPLATES.get(words, words) not in joined] == []
