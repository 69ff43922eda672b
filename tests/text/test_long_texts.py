"""Long texts: windows with the tokens of the whole text, one limit, and a tokenizer that fails on a document."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

import bertfeat
from bertfeat import records
from bertfeat.cli import main
from bertfeat.errors import InputError, RunError, TokenizingError
from bertfeat.extraction.estimation import estimate
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import cut_windows
from tests.support.fakes import pairs, texts
from tests.support.families import SENTENCES, build_tokenizer

PANICS = "^(a|a|aa)+$"
PANICKING = "a" * 40 + "!"
# Longer than a novel of 500,000 characters.
NOVEL = "\n".join(" ".join(SENTENCES) for _ in range(1_300))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "sentencepiece"])
def test_a_novel_in_windows_has_the_tokens_of_the_whole_text(kind: str, tmp_path: Path) -> None:
    assert len(NOVEL) > 500_000
    folder = build_tokenizer(kind, tmp_path / kind)
    made = Tokenizer.load(folder)
    documents = [*texts("short", NOVEL), *pairs(("short", NOVEL))]
    tokens = made.encode(documents)
    whole = BackendTokenizer.from_file(str(folder / "tokenizer.json")).encode(NOVEL, add_special_tokens=False).ids
    assert tokens.ids[tokens.starts[1] : tokens.starts[2]].tolist() == whole
    assert tokens.ids[tokens.pair_starts[2] :].tolist() == whole
    assert tokens.char_end.max() == len(NOVEL)
    assert made.count(documents).tolist() == np.diff(tokens.starts).tolist()
    windows = cut_windows(tokens, made, WindowLimits(512, 64), documents)
    assert windows.lengths.max() == 512
    assert windows.source[windows.kept & (windows.source >= 0)].tolist() == list(range(len(tokens.ids)))


def refusals(folder: Path, model: Path, **settings: Any) -> list[str]:
    """Return how extraction, its estimate and its in-memory form refuse a corpus whose second document is too long."""
    corpus = folder / "corpus.txt"
    corpus.write_text(f"short\n{'a b ' * 100}\n", encoding="utf-8")
    settings = {"model": str(model), "levels": "sentence", "layers": "-1", **settings}
    refused = []
    for call in (
        lambda: bertfeat.extract(corpus, folder / "out", **settings),
        lambda: estimate(corpus, bertfeat.ExtractConfig.from_dict(settings)),
        lambda: bertfeat.embed(["short", "a b " * 100], str(model)),
    ):
        try:
            call()
        except InputError as error:
            refused.append(str(error))
    return refused


def test_a_document_over_the_limit_is_refused_before_anything_is_written_or_set_aside(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_DOCUMENT_CHARS", 300)
    said = "has 400 characters, 300 are the most that are read; cut the document up"
    hint = "; to skip such rows, pass `bad_rows='quarantine'`"
    assert refusals(tmp_path, tiny_folder) == [
        f"{tmp_path}/corpus.txt:2: the row {said}{hint}",
        f"{tmp_path}/corpus.txt:2: the row {said}{hint}",
        f"document 1 {said}",
    ]
    assert not (tmp_path / "out").exists()
    assert len(refusals(tmp_path, tiny_folder, bad_rows="quarantine")) == 1
    assert bertfeat.open_store(tmp_path / "out").bad_rows()[0].row == 2


# --- a tokenizer that fails


def test_a_panic_is_an_error_that_names_the_document() -> None:
    backend = BackendTokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PANICS), "isolated")
    with pytest.raises(TokenizingError, match=r"document 1 cannot be tokenized: .* failed: .*retry-limit"):
        Tokenizer(backend, cls_id=None).encode(texts("fine", PANICKING, "fine too"))


@pytest.fixture
def panicking(tiny_folder: Path, tmp_path: Path) -> Path:
    """A model whose tokenizer has a regular expression that fails on some texts."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text("utf-8"))
    state["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": PANICS}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(state), encoding="utf-8")
    return folder


def test_the_command_line_names_the_document(
    panicking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"fine\n{PANICKING}\n", encoding="utf-8")
    flags = ["--model", str(panicking), "--level", "sentence", "--layers", "-1", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["bertfeat", "extract", str(corpus), "-o", str(tmp_path / "out"), *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    # Rust writes its panic there too.
    assert f"\nbertfeat: {corpus}:2: document 1 cannot be tokenized: " in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_run_that_has_begun_can_be_resumed(
    workers: int, panicking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertfeat.extraction.plan._SAMPLE_ROWS", 1)
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out"
    corpus.write_text("fine\n" * 9 + PANICKING, encoding="utf-8")
    settings = {"model": str(panicking), "levels": "sentence", "layers": "-1", "workers": workers, "shard_bytes": 1}
    for _ in range(2):
        with pytest.raises(RunError, match=r"corpus.txt:10: document 9 cannot .*; the same command resumes the run"):
            bertfeat.extract(corpus, out, **settings)
    assert list((out / "sentence").iterdir())
