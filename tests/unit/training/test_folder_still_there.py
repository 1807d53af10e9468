from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turnwise.errors import Stopped
from turnwise.training.folder_still_there import StillThere


def test_a_folder_that_is_removed_or_replaced_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    present = StillThere(folder)
    (folder / "metrics.jsonl").write_text("")
    present.on_train_batch_start()
    folder.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(Stopped, match=str(folder)):
            present.on_train_batch_start()
        folder.mkdir(exist_ok=True)  # as a writer that makes its folder does
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").rename(folder)
    present.on_train_batch_start()
