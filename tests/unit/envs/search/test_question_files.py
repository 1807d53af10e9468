"""Question files as they are published: each format, and what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from turnwise.errors import InputError
from turnwise_worlds.browse import BrowseEnv
from turnwise_worlds.search import SearchEnv
from turnwise_worlds.search.question_files import read_questions

HOTPOT = {
    "_id": "5a8b",
    "question": "Which river runs by the birthplace of Ada Field?",
    "answer": "Orm",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Ada Field", 1], ["Lenbury", 7]],
    "context": [
        ["Ada Field", ["Ada Field was a painter.", "She was born in Lenbury."]],
        ["Lenbury", ["Lenbury lies on the Orm."]],
        ["Ormwell", ["Ormwell is a spa."]],
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Who founded the firm that made the Comet?",
    "answer": "Jo Stark",
    "answer_aliases": ["Joseph Stark"],
    "answerable": True,
    "question_decomposition": [{"paragraph_support_idx": 2}, {"paragraph_support_idx": 0}],
    "paragraphs": [
        {"idx": 0, "title": "Stark Motors", "paragraph_text": "Founded by Jo Stark.", "is_supporting": True},
        {"idx": 1, "title": "Comet", "paragraph_text": "A comet is a body of ice.", "is_supporting": False},
        {"idx": 2, "title": "Comet", "paragraph_text": "A car by Stark Motors.", "is_supporting": True},
    ],
}


def write(path: Path, *records: dict[str, Any]) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(records))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_hotpot_as_published_as_hub_columns_and_as_json_inside_of_text(tmp_path: Path) -> None:
    columns = HOTPOT | {
        "context": {"title": ["Ada Field", "Lenbury", "Ormwell"], "sentences": [pair[1] for pair in HOTPOT["context"]]},
        "supporting_facts": {"title": ["Ada Field", "Lenbury"], "sent_id": [1, 7]},
    }
    text = HOTPOT | {key: json.dumps(HOTPOT[key]) for key in ("context", "supporting_facts")}
    read = [
        read_questions(write(tmp_path / name, record), "files.train")
        for name, record in (("a.json", HOTPOT), ("b.parquet", columns), ("c.parquet", text), ("d.jsonl", columns))
    ]
    assert all(found == read[0] for found in read)
    (question,), pages = read[0]
    assert question.answers == ("Orm",)
    # the number 7 points past the page: its first sentence stands in
    assert question.evidence == (("Ada Field", "She was born in Lenbury."), ("Lenbury", "Lenbury lies on the Orm."))
    assert [page.title for page in pages] == ["Ada Field", "Lenbury", "Ormwell"]


def test_musique_keeps_the_order_of_its_steps_and_leaves_out_the_unanswerable(tmp_path: Path) -> None:
    other = MUSIQUE | {"question": "Who?", "answerable": False}
    (question,), pages = read_questions(write(tmp_path / "m.jsonl", other, MUSIQUE, MUSIQUE), "files.unseen")
    assert question.titles == ("Comet", "Stark Motors")
    assert question.answers == ("Jo Stark", "Joseph Stark")
    assert len(pages) == 6  # of two records; Pages joins them
    env = SearchEnv(files={"unseen": str(tmp_path / "m.jsonl")}, calls="short")
    trajectory = env.demonstrate(env.tasks("unseen", 1)[0])
    assert trajectory.success
    assert [m["content"] for m in trajectory.messages[2::2]] == [
        "search Comet",
        "search Stark Motors",
        "answer Jo Stark",
    ]
    assert "A comet is a body of ice. A car by Stark Motors." in trajectory.messages[3]["content"]


def test_browse_collects_published_evidence(tmp_path: Path) -> None:
    env = BrowseEnv(files={"train": str(write(tmp_path / "h.json", HOTPOT))}, calls="short", window=1)
    trajectory = env.demonstrate(env.tasks("train", 1)[0])
    assert [m["content"] for m in trajectory.messages[2::2]] == [
        "search Ada Field",
        "open 1",
        "find born",
        "search Lenbury",
        "open 1",
        "answer Orm",
    ]
    assert trajectory.success


def test_bamboogle_and_flashrag_bring_no_pages_and_need_a_corpus(tmp_path: Path) -> None:
    table = tmp_path / "bamboogle.csv"
    table.write_text('Question,Answer\n"Who, then?","Jo Stark"\n')
    (question,), pages = read_questions(table, "files.unseen")
    assert (question.text, question.answers, question.evidence, pages) == ("Who, then?", ("Jo Stark",), (), [])
    flash = write(
        tmp_path / "f.jsonl", {"id": "0", "question": "Who?", "golden_answers": ["Jo", "Joe"], "metadata": {}}
    )
    assert read_questions(flash, "files.unseen")[0][0].answers == ("Jo", "Joe")
    with pytest.raises(ValueError, match="corpus"):
        SearchEnv(files={"unseen": str(flash)})

    corpus = tmp_path / "wiki.tsv"
    corpus.write_text('id\ttext\ttitle\n1\tJo Stark founded it.\t"Stark Motors"\n2\tA body of ice.\tComet\n')
    env = SearchEnv(files={"unseen": str(flash)}, corpus=str(corpus), calls="short", results=1)
    task = env.tasks("unseen", 1)[0]
    with pytest.raises(InputError, match=r"data\.file"):
        env.demonstrate(task)
    session = env.reset(task)
    # without named evidence a search is held against the page that the expert's brings
    assert env.accepts(session, "search motors", "search Stark Motors")
    assert not env.accepts(session, "search comet", "search Stark Motors")
    assert session.step("search stark").observation == "[1] Stark Motors: Jo Stark founded it."
    assert not env.accepts(session, "search motors", "search Stark Motors")
    assert env.accepts(session, "answer joe", "answer Jo")
