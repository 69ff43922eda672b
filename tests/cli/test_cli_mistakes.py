"""Mistakes of users: one line on stderr, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.command_line import good
from tests.support.command_line import refused as refused_line

CORPORA = {
    "good.txt": b"one fox\ntwo dogs jump\n",
    "long.txt": b"short\n" + b"word " * 100 + b"\n",
    "not.jsonl": b'{"text": "fine"}\nno json\n',
    "columns.csv": b"id,body\n1,a\n",
    "twice.jsonl": b'{"text": "a", "id": 5}\n{"text": "b", "id": 5}\n',
    "latin.txt": "fine\nbroké\n".encode("latin-1"),
    "good.conll": b"EU\tB-ORG\nrejects\tO\n\n",
    "words.jsonl": b'{"text": ["fine", "words"]}\n{"text": ["a", 3]}\n',
    **dict.fromkeys(("ending.xml", "sheet.xlsx"), b"x\n"),
    "nested.jsonl": b'{"content": {"body": "a fox", "n": 1}}\n',
}

# A command line of extract -> words that its line must have: the place, the value, and what to do.
MISTAKES = {
    "nowhere.txt -o out": ["nowhere.txt: no such file"],
    "*.nope -o out": ["'*.nope'"],
    "ending.xml -o out": ["'.xml'", ".jsonl", "--format"],
    "sheet.xlsx -o out": ["'.xlsx'", ".csv"],
    "columns.csv -o out": ["columns.csv: no column 'text'", "id, body", "--text-column"],
    "columns.csv --text-column body --keep-columns zzz --level sentence -o out": ["'zzz'", "id, body"],
    "not.jsonl -o out": ["not.jsonl:2: not JSON", "--bad-rows quarantine"],
    "latin.txt -o out": ["latin.txt:2: byte 0xe9 at position 4", "iconv"],
    "nested.jsonl --text-column content -o out": ["nested.jsonl:1: ", "--text-column content.body"],
    "good.txt --text-column body -o out": ["good.txt: ", "--text-column 'body'"],
    "twice.jsonl --id-column id -o out": ["twice.jsonl:2: id 5", "twice.jsonl:1"],
    "good.conll --level word --label-column ner -o out": ["good.conll: ", "'ner'", "--label-column"],
    "words.jsonl -o out": ["words.jsonl:1: ", "--is-split-into-words"],
    "good.txt --model no-such-model -o out": ["no-such-model", "minilm"],
    "good.txt --model ./nowhere -o out": ["./nowhere", "no such folder"],
    "good.txt --revision main -o out": ["--revision main"],
    "good.txt --layers 4 -o out": ["layer 4", "3"],
    "good.txt --layers top -o out": ["--layers 'top'", "last4"],
    "good.txt --layers last4 -o out": ["--layers last4"],
    "good.txt --max-length 65 -o out": ["--max-length 65", "64"],
    "long.txt --on-overlong error -o out": ["long.txt:2: ", "64"],
    "good.txt --pooling best -o out": ["'--pooling'", "'best'", "'mean'"],
    "good.txt --level word --level sentence -o out": ["--level is given more than once"],
    "good.txt --levels word -o out": ["'--levels'", "--level"],
    "good.txt --max-length many -o out": ["'--max-length'", "'many'"],
    "good.txt --shard-bytes lots -o out": ["--shard-bytes 'lots'", "256MB"],
    "good.txt --device tpu -o out": ["--device 'tpu'", "cuda"],
    "good.txt --keep-columns a -o out": ["--keep-columns", "--level"],
    "good.txt": ["no --output", "-o STORE"],
    "good.txt -o ''": ["--output ''"],
    "-o out": ["INPUT"],
    "good.txt -o file": ["file: not a folder"],
    "good.txt -o folder": ["folder: ", "mine.txt"],
    "good.txt -o folder --overwrite": ["folder: ", "mine.txt"],
    "good.txt --level sentence --pooling cls --model ./causal -o out": ["--pooling cls", "mean or max"],
}


@pytest.fixture(scope="module")
def place(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpora, models, and files where a store should be."""
    from tests.support.families import build_model

    folder = tmp_path_factory.mktemp("place")
    for name, content in CORPORA.items():
        (folder / name).write_bytes(content)
    (folder / "file").write_text("mine")
    (folder / "folder").mkdir()
    (folder / "folder" / "mine.txt").write_text("mine")
    (folder / "tiny").symlink_to(tiny_folder)
    causal = build_model("gpt2", folder / "causal")
    tokenizer = json.loads((causal / "tokenizer.json").read_text(encoding="utf-8"))
    (causal / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}), encoding="utf-8")
    settings = json.loads((causal / "tokenizer_config.json").read_text(encoding="utf-8"))
    del settings["cls_token"]
    (causal / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(folder: Path, arguments: list[str], *, stdin: bytes = b"") -> str:
    """Run a command that must be refused and change nothing; return its line."""
    before = contents(folder)
    line = refused_line(*arguments, stdin=stdin)
    assert contents(folder) == before
    return line


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = shlex.split(mistake)
    monkeypatch.chdir(place)
    model = [] if "--model" in arguments else ["--model", "./tiny"]
    layers = [] if "--layers" in arguments else ["--layers", "all"]
    line = refused(place, ["extract", *arguments, *model, *layers])
    assert [words for words in MISTAKES[mistake] if words not in line] == [], line


def test_a_differing_rerun_names_the_fields(place: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one fox\n")
    base = ["extract", str(corpus), "-o", str(tmp_path / "out"), "--model", str(place / "tiny")]
    good(*base, "--layers", "-1")
    assert "--layers was 3, now 0,3" in refused(tmp_path, [*base, "--layers", "0,-1"])
    line = refused(tmp_path, [*base, "--layers", "-1", "--store-dtype", "float32", "--stride", "3"])
    assert "--store-dtype was 'float16', now 'float32'" in line
    assert "--stride was 16, now 3" in line
    corpus.write_text("two foxes\n")
    said = f"{corpus} has changed since the store was made; use another folder or --overwrite"
    assert said in refused(tmp_path, [*base, "--layers", "-1"])
