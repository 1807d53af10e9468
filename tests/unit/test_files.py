"""What a full disk, a failing writer and a kill leave behind."""

from __future__ import annotations

import base64
import io
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import torch
from rich.table import Table

from turnwise.console import Terminal
from turnwise.daemon_threads import DaemonThreads
from turnwise.files import atomic_write, no_room, parse_json
from turnwise.runs.json_lines import append_text
from turnwise.text import plain, plain_body
from turnwise.training.checkpoints import AtomicCheckpointIO
from turnwise.training.progress import Phases

# -- files -------------------------------------------------------------------------------------------------------------

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def limited(program: str, size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that may write no file longer than ``size`` bytes."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_file_is_the_new_one_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "below" / "x.txt"
    with atomic_write(path) as part:
        part.write_text("old")
        assert not path.exists()
    with pytest.raises(TypeError), atomic_write(path) as part:
        part.write_text(b"ne")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


@full
def test_a_full_disk_names_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    (tmp_path / f".x.txt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught, atomic_write(path) as part:
        part.write_text("new")
    assert no_room(caught.value, tmp_path) == (
        f"{path}: no space left on this disk; free some space and run the same command again; a run of train.py then resumes"
    )
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@full
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"epoch": 1}, path)
    (tmp_path / f".last.ckpt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        AtomicCheckpointIO().save_checkpoint({"epoch": 2}, path)
    assert caught.value.filename == str(path)
    assert torch.load(path) == {"epoch": 1}


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match=str(pipe)), atomic_write(pipe) as part:
        part.write_text("x")
    assert pipe.is_fifo()


def test_lines_are_added_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_text(path, "one\n")
    append_text(path, "two\n")
    program = "import sys, pathlib; import turnwise.runs.json_lines as j; j.append_text(pathlib.Path(sys.argv[1]), 'three\\n')"
    failed = limited(program, 11, str(path))  # room for "thr"
    assert f"File too large: '{path}'" in failed.stderr
    assert path.read_text() == "one\ntwo\n"


# -- text --------------------------------------------------------------------------------------------------------------

KEY = "k-7Q2m_left.right+9"
MARKUP = "[/red] [/INST] [bold]loud[/bold] :smiley: [link=http://x]y[/link]"


@pytest.mark.parametrize("text", [MARKUP, "\x1b]0;title\x07", "\ud800", "[/"])
def test_data_neither_formats_nor_stops_a_terminal(text: str) -> None:
    """In lines, table cells, titles, headers and the progress bar; a real stream has to encode it."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Terminal(file=stream, width=200, force_terminal=True)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console.print(text, table)
    with Phases(console) as phases, phases.phase(text, 1) as advance:
        phases.log(text)
        advance(1, note=text)
    quiet = Terminal(file=stream, width=200)
    with Phases(quiet) as phases, phases.phase(text, 1) as advance:
        advance(1, note=text)
    stream.flush()
    shown = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert shown.count(plain(text)) >= 5
    assert "\x07" not in shown and "\x1b]" not in shown


@pytest.mark.parametrize(
    "body",
    [
        f"Authorization: Bearer {KEY}",
        f'{{"headers": {{"authorization": "Bearer {KEY}"}}}}',
        f"x{KEY}x",
        KEY[::-1],
        "Bearer another-token",
        "api_key=another-token",
        '{"x-api-key":"another-token"}',
        "sk-another-token",
        "Set-Cookie: session=another-token",
        base64.b64encode(b"another-token another-token 1").decode(),
        "http://me:another-token@host/",
        "y" * 4090 + KEY,
    ],
)
def test_no_key_of_what_a_server_says(body: str) -> None:
    for answer in (body, body.encode()):
        shown = plain_body(answer, KEY)
        assert KEY not in shown and KEY[::-1] not in shown and "another-token" not in shown
        assert KEY[:8] not in shown and base64.b64encode(b"another-token")[:12].decode() not in shown


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '{"a": ["\\udc00x"]}', "NaN", "[" * 100_000, "{", b'"\xed\xa0\x80"', b"\xff"]
)
def test_json_that_could_not_be_written_again_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"surrogate|JSON|deeply|codec|Expecting"):
        parse_json(text)


# -- daemon threads ----------------------------------------------------------------------------------------------------


def test_functions_run_together_up_to_the_most_and_in_order() -> None:
    threads, meeting, order = DaemonThreads(3, "t"), threading.Barrier(3), list[int]()
    assert [f.result(60) for f in [threads.submit(lambda: meeting.wait(60)) for _ in range(3)]]
    one = DaemonThreads(1, "t")
    for future in [one.submit(lambda n=n: order.append(n)) for n in range(50)]:  # type: ignore[misc]
        future.result(60)
    assert order == list(range(50))
    with pytest.raises(KeyError, match="wrong"):
        one.submit(lambda: {}["wrong"]).result(60)


def test_close_cancels_what_is_queued_and_lets_the_running_end() -> None:
    threads, started, free = DaemonThreads(1, "t"), threading.Event(), threading.Event()
    running = threads.submit(lambda: (started.set(), free.wait(60)))
    queued = threads.submit(lambda: 1)
    assert started.wait(60)
    threads.close()
    with pytest.raises(CancelledError):
        queued.result(60)
    with pytest.raises(RuntimeError, match="close"):
        threads.submit(lambda: 1)
    free.set()
    assert running.result(60) == (None, True)


def test_a_process_ends_while_a_function_waits() -> None:
    code = (
        "import threading\nfrom turnwise.daemon_threads import DaemonThreads\n"
        "DaemonThreads(2, 't').submit(lambda: threading.Event().wait())\nprint('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "end\n"
