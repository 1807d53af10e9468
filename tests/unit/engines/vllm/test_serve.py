"""scripts/serve.py as a person runs it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from turnwise.engines.vllm.local import free_port

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "scripts" / "serve.py"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Stands where vLLM's Python would, as in ``test_local``."""
    path = tmp_path / "python"
    path.write_text(
        f'#!/bin/sh\nexec {sys.executable} -S {Path(__file__).with_name("served.py")} "$@"\n', encoding="utf-8"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def start(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if name != "TURNWISE_VLLM_KEY"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "--folder", str(tmp_path / "serve"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**variables, "PYTHONPATH": str(ROOT / "src"), **environment},
    )


def test_it_serves_until_it_is_told_to_end(python: str, tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    server = start(tmp_path, "--python", python, "--port", str(port), TURNWISE_VLLM_KEY="secret")
    assert server.stdout is not None
    lines = [server.stdout.readline()]
    while "ready" not in lines[-1]:
        assert lines[-1], server.communicate()
        lines.append(server.stdout.readline())
    assert f"engine.urls=[http://127.0.0.1:{port}]" in lines[-1]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": "Bearer secret"})
    assert b"policy" in urllib.request.urlopen(request, timeout=20).read()
    server.send_signal(signal.SIGTERM)
    rest, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (0, "")
    assert "secret" not in "".join(lines) + rest
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--host", "0.0.0.0"], {}, "set TURNWISE_VLLM_KEY"),
        (["--host", "0.0.0.0", "--full-weights"], {"TURNWISE_VLLM_KEY": "k"}, "--full-weights: "),
        (["--python", "/nowhere/python"], {}, "requirements-vllm.txt"),
        (["--lora-rank", "0"], {}, "policy.lora.r=0"),
        (["--rows", "0"], {}, "--rows must be at least 1"),
        (["--", "--api-key", "k"], {}, "--arguments must not contain --api-key"),
    ],
)
def test_what_cannot_be_is_told_in_one_message(
    python: str, tmp_path: Path, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    server = start(tmp_path, "--python", python, *arguments, **environment)
    output, errors = server.communicate(timeout=60)
    assert server.returncode == 2 and message in errors
    assert "Traceback" not in errors and output == ""


def test_a_server_that_does_not_start_is_told_with_the_end_of_its_log(python: str, tmp_path: Path) -> None:
    server = start(tmp_path, "--python", python, "--port", str(free_port("127.0.0.1")), SERVED_BREAKS="1", **KEYED)
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 2
    assert "vLLM did not start" in errors and "no such architecture" in errors


KEYED = {"TURNWISE_VLLM_KEY": "k"}


def test_a_server_that_dies_later_is_told(python: str, tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    server = start(tmp_path, "--python", python, "--port", str(port), **KEYED)
    assert server.stdout is not None
    while "ready" not in (line := server.stdout.readline()):
        assert line
    os.kill(int(urllib.request.urlopen(f"http://127.0.0.1:{port}/pid", timeout=20).read()), signal.SIGKILL)
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 1 and "vLLM has ended" in errors
