"""Long texts: windows with the tokens of the whole text, one limit, and a tokenizer that fails on a document."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as BackendTokenizer

import bertfeat
from bertfeat.errors import InputError, TokenizingError
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.window_ranges import WindowLimits
from bertfeat.text.windows import cut_windows
from tests.support.command_line import bertfeat as run
from tests.support.fakes import pairs, texts
from tests.support.families import SENTENCES, build_tokenizer

pytestmark = pytest.mark.promise("odd-text")

PANICS = "^(a|a|aa)+$"
PANICKING = "a" * 40 + "!"
TOO_LONG = "a b " * 1_000_001
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
    """Return how extraction and its in-memory form refuse a corpus whose second document is too long."""
    corpus = folder / "corpus.txt"
    corpus.write_text(f"short\n{TOO_LONG}\n", encoding="utf-8")
    settings = {"model": str(model), "levels": "sentence", "layers": "-1", **settings}
    refused = []
    for call in (
        lambda: bertfeat.extract(corpus, folder / "out", **settings),
        lambda: bertfeat.embed(["short", TOO_LONG], str(model)),
    ):
        try:
            call()
        except InputError as error:
            refused.append(str(error))
    return refused


def test_a_document_over_the_limit_is_refused_before_anything_is_written_or_set_aside(
    tmp_path: Path, tiny_folder: Path
) -> None:
    said = "has 4,000,004 characters, 4,000,000 are the most that are read; cut the document up"
    hint = "; to skip such rows, pass `bad_rows='quarantine'`"
    assert refusals(tmp_path, tiny_folder) == [
        f"{tmp_path}/corpus.txt:2: the row {said}{hint}",
        f"document 1 {said}",
    ]
    assert not (tmp_path / "out").exists()
    assert len(refusals(tmp_path, tiny_folder, bad_rows="quarantine")) == 1
    assert bertfeat.open_store(tmp_path / "out").bad_rows()[0].row == 2


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


@pytest.mark.promise("odd-text")
def test_a_panic_is_an_error_that_names_the_document(panicking: Path, tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out"
    corpus.write_text(f"fine\n{PANICKING}\n", encoding="utf-8")
    ended = run("extract", corpus, "-o", out, "--model", panicking, "--level", "sentence", "--layers", "-1", "--quiet")
    assert ended.code == 2
    assert f"bertfeat: {corpus}:2: document 1 cannot be tokenized: " in ended.err
    assert not out.exists()
    with pytest.raises(TokenizingError, match=r"document 1 cannot be tokenized: .* failed: .*retry-limit"):
        bertfeat.embed(["fine", PANICKING, "fine too"], str(panicking))
