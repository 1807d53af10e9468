"""Makes the text of ``python train.py --help`` from the names of the files in ``conf/``. Hydra's own help takes a
second.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

_TEXT = """\
Turnwise, turn-level reinforcement learning for language-model agents.

  python train.py                                       method=pivotrl on the shipped policy, minutes on two cores
  python train.py method=selective                      likewise sft, grpo, awpo, trace and all other methods
  python train.py method=sft seed=1 data.trajectories=100
  python train.py method=grpo policy=qwen3_4b trainer=gpu
  python train.py -m method=pivotrl,local,sft seed=0,1,2
  python train.py sweep=pivotrl_tab4                    a table of the paper, row by row
  python train.py debug=tiny method=pivotrl             a short run that checks every stage

The files of a run are in outputs/<name>/seed<seed>. The same command resumes the run. name=... chooses another folder;
fresh=true renames the existing folder and starts the run again.

Choose one option of each group (group=option)

{groups}

These launchers can start the runs of -m or sweep=
{launchers}

All keys of a run, with their values: python train.py method=pivotrl --cfg job"""


def help_text(folder: Path) -> str:
    """Returns the help text of ``train.py``, with the options of every group."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.yaml")):
        group = path.parent.relative_to(folder).as_posix()
        if group != ".":
            found.setdefault(group, []).append(path.stem)
    groups = [_line(group, names) for group, names in found.items() if not group.startswith(("hydra", "at/"))]
    launchers = _line("hydra/launcher", found.get("hydra/launcher", []))
    return _TEXT.format(groups="\n".join(groups), launchers=launchers)


def _line(group: str, names: list[str]) -> str:
    line = f"{group}: {', '.join(names)}"
    return fill(line, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
