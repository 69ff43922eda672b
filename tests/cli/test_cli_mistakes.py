"""Mistakes of users: one line on stderr, exit code 2, and nothing left behind."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bertfeat import open_store
from bertfeat.cli import options
from tests.support.command_line import commands, good
from tests.support.command_line import refused as refused_line

CORPORA = {
    "good.txt": b"one fox\ntwo dogs jump\n",
    "long.txt": b"short\n" + b"word " * 100 + b"\n",
    "not.jsonl": b'{"text": "fine"}\nno json\n',
    "cut.jsonl": b'{"text": "fine"}\n{"text": "cut of',
    "array.jsonl": b'["text"]\n',
    "columns.jsonl": b'{"body": "a", "id": 1}\n',
    "columns.csv": b"id,body\n1,a\n",
    "number.jsonl": b'{"text": "fine"}\n{"text": 7}\n',
    "null.jsonl": b'{"text": null}\n',
    "key-twice.jsonl": b'{"text": "a"}\n{"text": "b", "text": "c"}\n',
    "tagged.conll.txt": b"EU\tB-ORG\nrejects\tO\nit\tO\n\n",
    "twice.jsonl": b'{"text": "a", "id": 5}\n{"text": "b", "id": 5}\n',
    "latin.txt": "fine\nbroké\n".encode("latin-1"),
    "latin.csv": "id,text\n1,fine\n2,broké\n".encode("latin-1"),
    "columns.conll": b"EU\tB-ORG\nrejects\tO\n\nGerman\tB-MISC\tX\n\n",
    "good.conll": b"EU\tB-ORG\nrejects\tO\n\n",
    "words.jsonl": b'{"text": ["fine", "words"]}\n{"text": ["a", 3]}\n',
    "cut.txt.gz": gzip.compress(b"a line of text\n" * 1000)[:40],
    "long-later.txt": b"some words of a line\n" * 60 + b"word " * 100 + b"\n",
    **dict.fromkeys(("ending.xml", "sheet.xlsx", "text.docx"), b"x\n"),
    "nested.jsonl": b'{"content": {"body": "a fox", "n": 1}}\n',
    "utf-16.csv": "id,text\n1,fine\n".encode("utf-16"),
}

# name -> (arguments, what the line must say)
MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "missing file": (["nowhere.txt", "-o", "out"], ["nowhere.txt: no such file"]),
    "glob without a match": (["*.nope", "-o", "out"], ["no file matches '*.nope'"]),
    "a folder": (["folder", "-o", "out"], ["folder: is a folder"]),
    "unknown ending": (["ending.xml", "-o", "out"], ["'.xml' names no format", ".jsonl", "--format"]),
    "Excel": (["sheet.xlsx", "-o", "out"], ["'.xlsx' names no format; save it as one of .txt, ", ".csv"]),
    "Word": (["text.docx", "-o", "out"], ["'.docx' names no format; save it as one of .txt, "]),
    "what could be a text": (
        ["one fox jumps", "-o", "out"],
        ["one fox jumps: no such file; check the path (read from "],
    ),
    "missing column": (["columns.csv", "-o", "out"], ["columns.csv: no column 'text'", "id, body", "--text-column"]),
    "missing key": (["columns.jsonl", "-o", "out"], ["columns.jsonl:1: no column 'text'", "body, id"]),
    "missing kept column": (
        ["columns.csv", "--text-column", "body", "--keep-columns", "zzz", "--level", "sentence", "-o", "out"],
        ["no column 'zzz'", "id, body", "--keep-columns"],
    ),
    "missing id column": (["columns.csv", "--text-column", "body", "--id-column", "key", "-o", "out"], ["'key'", "id"]),
    "no JSON": (["not.jsonl", "-o", "out"], ["not.jsonl:2: not JSON", "--bad-rows quarantine"]),
    "JSON cut off": (["cut.jsonl", "-o", "out"], ["cut.jsonl:2: "]),
    "no JSON object": (["array.jsonl", "-o", "out"], ["array.jsonl:1: "]),
    "a number for a text": (["number.jsonl", "-o", "out"], ["number.jsonl:2: column 'text' holds 7"]),
    "null for a text": (["null.jsonl", "-o", "out"], ["null.jsonl:1: column 'text'"]),
    "bad UTF-8": (["latin.txt", "-o", "out"], ["latin.txt:2: byte 0xe9 at position 4", "iconv -f cp1252 -t utf-8"]),
    "bad UTF-8 in a table": (["latin.csv", "-o", "out"], ["latin.csv:3: byte 0xe9", "in Excel save it as CSV UTF-8"]),
    "UTF-16": (["utf-16.csv", "-o", "out"], ["utf-16.csv:1: ", "iconv -f utf-16 -t utf-8"]),
    "an object for a text": (
        ["nested.jsonl", "--text-column", "content", "-o", "out"],
        ["nested.jsonl:1: column 'content' holds ", "not text; name a field of it: --text-column content.body\n"],
    ),
    "a missing field": (
        ["nested.jsonl", "--text-column", "content.text", "-o", "out"],
        ["nested.jsonl:1: no column 'content.text' for --text-column; did you mean 'content.n"],
    ),
    "gzip cut off": (["cut.txt.gz", "-o", "out"], ["cut.txt.gz: ", "gzip", "cut off"]),
    "a key twice in a row": (["key-twice.jsonl", "-o", "out"], ["key-twice.jsonl:2: key 'text' appears twice"]),
    "CoNLL named txt": (["tagged.conll.txt", "-o", "out"], ["tagged.conll.txt: looks like CoNLL; pass --format conll"]),
    "a text column of lines": (
        ["good.txt", "--text-column", "body", "-o", "out"],
        ["good.txt: has no columns for --text-column 'body'; leave it out"],
    ),
    "a text column of words": (
        ["good.conll", "--text-column", "body", "--level", "word", "--dry-run"],
        ["good.conll: has no columns for --text-column 'body'; leave it out"],
    ),
    "an id twice": (["twice.jsonl", "--id-column", "id", "-o", "out"], ["twice.jsonl:2: id 5", "twice.jsonl:1"]),
    "wrong number of columns": (["columns.conll", "--level", "word", "-o", "out"], ["columns.conll:", "3 columns"]),
    "missing label column": (
        ["good.conll", "--level", "word", "--label-column", "ner", "-o", "out"],
        ["good.conll: no word column 'ner'", "--label-column"],
    ),
    "a word that is not a string": (
        ["words.jsonl", "--is-split-into-words", "-o", "out"],
        ["words.jsonl:2: column 'text' holds 3 at position 1"],
    ),
    "a list of words for a text": (["words.jsonl", "-o", "out"], ["words.jsonl:1: ", "--is-split-into-words"]),
    "text and words": (["good.txt", "good.conll", "-o", "out"], ["good.txt: gives text, and good.conll gives words"]),
    "labels of plain text": (
        ["good.txt", "--level", "word", "--label-column", "x", "-o", "out"],
        ["good.txt: --label-column"],
    ),
    "unknown model": (["good.txt", "--model", "no-such-model", "-o", "out"], ["model no-such-model", "minilm"]),
    "missing model folder": (["good.txt", "--model", "./nowhere", "-o", "out"], ["model './nowhere': no such folder"]),
    "a folder without a model": (["good.txt", "--model", "./folder", "-o", "out"], ["no config.json"]),
    "a revision of a folder": (["good.txt", "--revision", "main", "-o", "out"], ["--revision main"]),
    "layer out of range": (["good.txt", "--layers", "4", "-o", "out"], ["layer 4", "0 (embeddings) to 3"]),
    "negative layer out of range": (["good.txt", "--layers", "-5", "-o", "out"], ["layer -5", "-4 to -1"]),
    "no layer": (["good.txt", "--layers", "top", "-o", "out"], ["--layers 'top' is not a layer", "last4"]),
    "last4 of three": (["good.txt", "--layers", "last4", "-o", "out"], ["--layers last4", "3 blocks"]),
    "max-length over the model's": (["good.txt", "--max-length", "65", "-o", "out"], ["--max-length 65", "64"]),
    "max-length without room": (["good.txt", "--max-length", "2", "-o", "out"], ["--max-length 2", "at least 1"]),
    "max-length zero": (["good.txt", "--max-length", "0", "-o", "out"], ["--max-length 0 is below 1"]),
    "stride too large": (["good.txt", "--stride", "62", "-o", "out"], ["--stride 62", "62 tokens"]),
    "negative stride": (["good.txt", "--stride", "-1", "-o", "out"], ["--stride -1 is below 0"]),
    "a document too long": (["long.txt", "--on-overlong", "error", "-o", "out"], ["long.txt:2: document 1 has", "64"]),
    "a document too long in a later shard": (
        ["long-later.txt", "--on-overlong", "error", "--shard-bytes", "20kB", "-o", "out"],
        ["long-later.txt:61: document 60 has", "64"],
    ),
    "unknown pooling": (["good.txt", "--pooling", "best", "-o", "out"], ["'--pooling'", "'best'", "'mean'"]),
    "unknown level": (["good.txt", "--level", "phrase", "-o", "out"], ["--level 'phrase'", "token, word, sentence"]),
    "unknown combination": (["good.txt", "--combine", "avg", "-o", "out"], ["--combine 'avg'", "concat"]),
    "levels one by one": (
        ["good.txt", "--level", "word", "--level", "sentence", "-o", "out"],
        ["--level is given more than once; give it once, with commas between the values"],
    ),
    "two poolings": (
        ["good.txt", "--level", "sentence", "--pooling", "mean", "--pooling=max", "--layers", "-1", "-o", "out"],
        ["--pooling is given more than once; give it once, with one value"],
    ),
    "unknown flag": (["good.txt", "--levels", "word", "-o", "out"], ["No such option '--levels'", "--level"]),
    "no number": (["good.txt", "--max-length", "many", "-o", "out"], ["'--max-length'", "'many'"]),
    "no size": (["good.txt", "--shard-bytes", "lots", "-o", "out"], ["'--shard-bytes'", "'lots'", "256MB"]),
    "a negative size": (["good.txt", "--shard-bytes", "-5MB", "-o", "out"], ["'-5MB' is not a size; write", "256MB"]),
    "no workers": (["good.txt", "--workers", "0", "-o", "out"], ["--workers 0 is below 1"]),
    "unknown device": (["good.txt", "--device", "tpu", "-o", "out"], ["--device 'tpu'", "cuda"]),
    "kept columns without sentences": (
        ["good.txt", "--keep-columns", "a", "-o", "out"],
        ["--keep-columns would not be stored without the sentence level; add that to --level"],
    ),
    "two second texts": (["good.txt", "--text-pairs", "--text-pair-column", "b", "-o", "out"], ["--text-pairs"]),
    "no output": (["good.txt"], ["no --output", "-o DIR"]),
    "an empty output": (["good.txt", "-o", ""], ["--output ''"]),
    "no input": (["-o", "out"], ["INPUT"]),
    "output is a file": (["good.txt", "-o", "file"], ["file: not a folder"]),
    "output under a file": (["good.txt", "-o", "file/out"], ["file/out: cannot create the folder"]),
    "output holds something else": (
        ["good.txt", "-o", "folder"],
        ["folder: holds files that are not part of a store", "mine.txt"],
    ),
    "output holds something else, to be replaced": (
        ["good.txt", "-o", "folder", "--overwrite"],
        ["folder: holds files that are not part of a store", "mine.txt"],
    ),
    "pooler of a model without one": (
        [
            "good.txt",
            "--level",
            "sentence",
            "--pooling",
            "pooler",
            "--layers",
            "-1",
            "--model",
            "./causal",
            "-o",
            "out",
        ],
        ["--pooling pooler", "no pooler"],
    ),
    "cls of a model without one": (
        ["good.txt", "--level", "sentence", "--pooling", "cls", "--model", "./causal", "-o", "out"],
        ["--pooling cls", "no classification token", "mean or max"],
    ),
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


def test_no_command_takes_the_last_of_several_lists_or_choices() -> None:
    params = [(command, param) for _, command in commands() for param in command.params]
    assert {str(param.name) for _, param in params if getattr(param, "metavar", "") == "A,B"} <= options._LISTS
    takers = [command for command, param in params if param.name in options._LISTS | options._CHOICES]
    assert all(isinstance(command, options.GroupedCommand) for command in takers)
    # The last one counts, as an alias needs it.
    assert "--limit" in refused_line("extract", "none.txt", "-o", "out", "--limit", "5", "--limit", "0")


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
    arguments, said = MISTAKES[mistake]
    monkeypatch.chdir(place)
    model = [] if "--model" in arguments else ["--model", "./tiny"]
    layers = [] if "--layers" in arguments else ["--layers", "all"]
    line = refused(place, ["extract", *arguments, *model, *layers])
    for words in said:
        assert words in line
    if mistake in ("missing file", "no JSON", "layer out of range", "unknown model"):
        assert said[0] in refused(place, ["extract", *arguments, *model, *layers, "--dry-run"])


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads everything")
def test_unreadable_file(place: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "secret.txt"
    corpus.write_text("text\n")
    corpus.chmod(0)
    line = refused(tmp_path, ["extract", str(corpus), "-o", str(tmp_path / "out"), "--model", str(place / "tiny")])
    assert "secret.txt" in line


def test_a_file_that_cannot_be_opened(tmp_path: Path, tiny_folder: Path) -> None:
    loop = tmp_path / "loop.txt"
    loop.symlink_to(loop)
    arguments = ["extract", str(loop), "-o", str(tmp_path / "out"), "--model", str(tiny_folder), "--layers", "all"]
    assert "loop.txt: " in refused(tmp_path, arguments)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.conll"])
def test_an_empty_file(name: str, tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    arguments = ["extract", str(tmp_path / name), "-o", str(tmp_path / "out"), "--model", str(tiny_folder)]
    assert f"{name}: has no bytes" in refused(tmp_path, [*arguments, "--layers", "all"])


@pytest.mark.parametrize(("name", "content"), [("a.csv", b"id,text\n"), ("a.conll", b"\n\n")])
def test_no_rows_give_a_valid_empty_store(name: str, content: bytes, tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    good("extract", tmp_path / name, "-o", out, "--model", tiny_folder, "--layers", "-1", "--level", "token,word")
    good("verify", out)
    assert good("inspect", out, "--json").json["n_documents"] == 0
    assert open_store(out).numpy("word", "layer_03").shape == (0, 32)


@pytest.mark.parametrize(
    ("stdin", "said"), [(b"", "<stdin>: has no bytes"), (b"fine\nbrok\xe9\n", "<stdin>:2: byte 0xe9")]
)
def test_standard_input(stdin: bytes, said: str, tmp_path: Path, tiny_folder: Path) -> None:
    arguments = ["extract", "-", "-o", str(tmp_path / "out"), "--model", str(tiny_folder), "--layers", "all"]
    assert refused(tmp_path, arguments, stdin=stdin).startswith(f"bertfeat: {said}")


def test_only_bad_rows_give_a_valid_empty_store(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"no json\nnor this\n")
    out = tmp_path / "out"
    arguments = ["extract", tmp_path / "bad.jsonl", "-o", out, "--model", tiny_folder, "--layers", "-1"]
    made = good(*arguments, "--bad-rows", "quarantine", "--level", "token,sentence")
    assert "2 bad rows" in made.out
    assert good("inspect", out, "--json").json["n_bad_rows"] == 2
    good("verify", out)
    assert open_store(out).numpy("sentence", "layer_03").shape == (0, 32)


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


def test_other_weights_under_the_same_name_are_noticed(tiny_folder: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one fox\n")
    arguments = ["extract", str(corpus), "-o", str(tmp_path / "out"), "--model", str(model), "--layers", "-1"]
    good(*arguments)
    weights = safetensors.numpy.load_file(model / "model.safetensors")
    weights = {name: np.ascontiguousarray(value + 1) for name, value in weights.items()}
    safetensors.numpy.save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert "the digest of the model's weights was" in refused(tmp_path, arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "nowhere"], "nowhere: no such folder"),
        (["inspect", "folder"], "folder: a folder with mine.txt; inspect takes a store, a probe, a sweep, an index or"),
        (["inspect", "file"], "file:1: not a file of word vectors"),
        (["verify", "nowhere"], "nowhere: "),
        (["verify", "folder"], "folder: "),
        (["inspect"], "WHAT"),
        (["extrakt"], "No such command 'extrakt'"),
    ],
)
def test_other_commands(arguments: list[str], said: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert said in refused(place, arguments)
