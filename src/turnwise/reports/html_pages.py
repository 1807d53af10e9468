"""Provides the parts that all HTML pages share: the templates with their filters, and inline scripts. Writes a page."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from time import localtime, strftime

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from turnwise.files import atomic_write
from turnwise.reports import sentences
from turnwise.runs.status_file import progress, remaining


def write_page(path: Path, page: str) -> None:
    """Writes a page atomically: the previous page stays visible until the new page is complete."""
    with atomic_write(path) as part:
        part.write_text(page, encoding="utf-8")


def script(*names: str) -> dict[str, str]:
    """Returns the text of scripts from ``templates/``, and its hash, which the page's security policy allows."""
    text = "".join((files("turnwise.reports") / "templates" / name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script": Markup(text), "script_hash": f"sha256-{digest}"}


def environment() -> Environment:
    """Returns the jinja2 environment of the templates. All text is escaped: a model's text never becomes markup."""
    folder = files("turnwise.reports") / "templates"
    sources = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.name.endswith(".jinja")}
    env = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("percent", "signed", "interval", "count", "duration", "nats"):
        env.filters[name] = getattr(sentences, name)
    env.filters["drawing"] = Markup  # marks text as safe HTML: only for SVG from reports.svg, which escapes its text
    env.globals.update(
        **script("figures.js"),
        progress=progress,
        remaining=remaining,
        clock=lambda seconds: strftime("%Y-%m-%d %H:%M:%S", localtime(seconds)),
        ood_sentence=sentences.ood_sentence,
        cost_sentence=sentences.cost_sentence,
        gate_sentence=sentences.gate_sentence,
        judge_sentence=sentences.judge_sentence,
        verifier_sentence=sentences.verifier_sentence,
        scale_sentence=sentences.scale_sentence,
        held_out_sentence=sentences.held_out_sentence,
    )
    return env
