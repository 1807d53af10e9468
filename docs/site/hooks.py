"""What `make docs` adds to MkDocs: the repository's pages in their places, files that they link to, gallery and reference."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)(?P<target>[^)\s#]+)(?=[)#])")
PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):<code>~?")


REFERENCE = {
    "types": ["turnwise.types"],
    "environments": ["turnwise.env", "turnwise_worlds.scripted_experts", "turnwise_worlds.tool_environment"],
    "methods": [f"turnwise.methods.{name}" for name in ("sft", "grpo", "pivotrl", "awpo", "trace", "selective")],
    "parts": [
        f"turnwise.methods.{name}"
        for name in ("states", "allocate", "gate", "reward", "credit", "turn_rewards", "loss")
    ],
    "engines": ["turnwise.engines.engine"],
    "judges": ["turnwise.judges.judge"],
    "settings": ["turnwise.config.settings"],
    "results": ["turnwise.runs.result_file"],
}
"""Page of the reference -> modules of the package on it."""


def pages() -> list[str]:
    """Markdown files of the repository, as paths from its root."""
    top = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    below = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("src/turnwise/assets/*/README.md")]
    return top + sorted(path.relative_to(ROOT).as_posix() for path in below)


def targets(page: str, text: str) -> set[str]:
    """Files and folders of the repository that a page links to, as paths from the root, without those that do not exist."""
    found = {normpath(join(dirname(page), link["target"])) for link in LINK.finditer(FENCE.sub("", text))}
    return {target for target in found if not target.startswith("..") and (ROOT / target).exists()}


def on_config(config: Any) -> Any:
    """Completes the navigation."""
    named = set(re.findall(r"'([^']+\.md)'", repr(config.nav)))
    methods = [page for page in pages() if page.startswith("docs/methods/") and page not in named]
    rest = [page for page in pages() if page not in named and page not in methods]
    listed = [f"{folder}/README.md" for folder in folders()]
    for section in config.nav:
        if "Methods" in section:
            section["Methods"] = methods
        elif "Reference" in section:
            section["Reference"] = [f"docs/reference/{name}.md" for name in REFERENCE]
        elif "More" in section:
            section["More"] = rest + listed
    return config


def folders() -> list[str]:
    """Folders that pages link to."""
    every = {target for page in pages() for target in targets(page, (ROOT / page).read_text(encoding="utf-8"))}
    return sorted(target for target in every if (ROOT / target).is_dir() and not (ROOT / target / "README.md").exists())


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages, what they link to, and the pages that are generated."""
    added: dict[str, File] = {}
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        added[page] = File.generated(config, page, abs_src_path=str(ROOT / page))
        for target in targets(page, text):
            if (ROOT / target).is_file() and not target.endswith(".md"):
                added[target] = File.generated(config, target, abs_src_path=str(ROOT / target))
    for folder in folders():
        names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
        for name in names:
            added[f"{folder}/{name}"] = File.generated(
                config, f"{folder}/{name}", abs_src_path=str(ROOT / folder / name)
            )
        content = f"# {folder}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
        added[f"{folder}/README.md"] = File.generated(config, f"{folder}/README.md", content=content)
    for picture in (ROOT / "docs" / "images").iterdir():  # the gallery also shows those that no page links to
        name = picture.relative_to(ROOT).as_posix()
        added[name] = File.generated(config, name, abs_src_path=str(picture))
    added["docs/gallery.md"] = File.generated(config, "docs/gallery.md", content=gallery())
    for name, modules in REFERENCE.items():
        content = f"# {name.capitalize()}\n\n" + "".join(f"::: {module}\n\n" for module in modules)
        added[f"docs/reference/{name}.md"] = File.generated(config, f"docs/reference/{name}.md", content=content)
    for file in added.values():
        files.append(file)
    return files


def gallery() -> str:
    """Every figure of docs/images, with its caption and the page that it stands on."""
    shown: dict[str, tuple[str, str]] = {}
    for page in pages():
        for picture in PICTURE.finditer((ROOT / page).read_text(encoding="utf-8")):
            shown.setdefault(normpath(join(dirname(page), picture["target"])), (page, picture["alt"]))
    parts = ["# Gallery\n"]
    for path in sorted((ROOT / "docs" / "images").iterdir()):
        page, caption = shown.get(path.relative_to(ROOT).as_posix(), ("", path.stem))
        origin = f"\n\nFrom [{page}]({'../' + page})." if page else ""
        parts.append(f"![{caption}](images/{path.name})\n\n{caption}{origin}\n")
    return "\n".join(parts)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links to folders to the pages that list them."""
    at = dirname(page.file.src_uri)

    def listed(link: re.Match[str]) -> str:
        target = link["target"]
        place = ROOT / normpath(join(at, target))
        return f"{target.rstrip('/')}/README.md" if place.is_dir() else target

    return LINK.sub(listed, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Shows names in docstrings as code, without the roles of reStructuredText."""
    return ROLE.sub("<code>", html)
