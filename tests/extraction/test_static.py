"""Static vectors: rows are the vectors of the file, sentences the mean of known words, and commands take them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import bertfeat
from bertfeat.errors import UserError
from tests.support.command_line import bertfeat as run
from tests.support.command_line import good
from tests.support.places import ROOT, TESTS
from tests.support.static_files import write_model2vec, write_vectors

pytestmark = pytest.mark.numeric

DATA = ROOT / "examples" / "data"
CONLL = DATA / "wnut17_dev.conll"
VECTORS = {"the": [1, 2, 3], "bank": [0.5, -1, 2.25], ",": [4, 0, -7], "river": [0, 8, 16], "state-of-the-art": [9] * 3}
EXACT = {"store_dtype": "float32"}
TRUNCATE = ("--level", "sentence", "--on-overlong", "truncate")


def vectors_of(model: Path, texts: Sequence[Any], level: str, **settings: Any) -> np.ndarray[Any, Any]:
    """Return the vectors of texts in memory, NaN for rows without one."""
    encoder = bertfeat.Encoder(str(model), **settings)
    if level == "sentence":
        return encoder.encode(texts)
    found = encoder.words(texts)["layer_00"].to_list()
    dim = len(next(row for row in found if row is not None))
    return np.array([[np.nan] * dim if row is None else row for row in found], np.float32)


def conll_words() -> list[list[str]]:
    blocks = CONLL.read_text("utf-8").strip().split("\n\n")
    return [[line.split("\t")[0] for line in block.splitlines()] for block in blocks]


@pytest.fixture(scope="module")
def glove(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random vectors for two of three words of a corpus, under their own names."""
    words = sorted({word for words in conll_words() for word in words})
    rng = np.random.default_rng(3)
    vectors = {word: rng.normal(size=20).round(4) for number, word in enumerate(words) if number % 3}
    return write_vectors(tmp_path_factory.mktemp("glove") / "glove.txt", vectors)


def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    lines = [line.split(" ") for line in path.read_text("utf-8").splitlines()]
    return {word: np.array(values, np.float32) for word, *values in lines}


@pytest.mark.promise("static")
def test_words_and_sentences_are_those_of_the_file(tmp_path: Path, glove: Path) -> None:
    """A minimal reading of the format, and `get_mean_vector` of gensim as a few lines."""
    store = bertfeat.extract(CONLL, tmp_path / "store", model=str(glove), levels="word,sentence", **EXACT)
    table, lists = read(glove), conll_words()
    words = [word for words in lists for word in words]
    known = np.array([word in table for word in words])
    assert store.polars("word", ["word"])["word"].to_list() == words
    assert np.array_equal(store.valid("word", "layer_00"), known)
    assert np.array_equal(store.numpy("word", "layer_00")[known], np.stack([table[w] for w in words if w in table]))
    means = [np.mean([table[w] for w in words if w in table] or [np.full(20, np.nan)], axis=0) for words in lists]
    np.testing.assert_allclose(store.numpy("sentence", "layer_00"), means, atol=1e-6)
    counts = store.manifest.totals.counts
    assert (counts["n_tokens"], counts["n_unknown_tokens"]) == (len(words), int((~known).sum()))
    assert good("inspect", tmp_path / "store", "--json").json["n_unknown_tokens"] == (~known).sum()


def test_text_is_split_as_berts(tmp_path: Path, tiny_folder: Path) -> None:
    path, corpus = write_vectors(tmp_path / "v.vec", VECTORS), tmp_path / "corpus.txt"
    corpus.write_text("The bank, the RIVER bank\nstate-of-the-art\n\nqqq qqq\n")
    store = bertfeat.extract(corpus, tmp_path / "store", model=str(path), levels="word,sentence", **EXACT)
    words = store.polars("word")
    contextual = bertfeat.extract(corpus, tmp_path / "bert", model=str(tiny_folder), levels="word", layers="0")
    keys = ["doc_id", "word_index", "word", "char_start", "char_end"]
    assert contextual.polars("word", keys).equals(store.polars("word", keys))
    assert [None if row is None else row.to_list() for row in words["layer_00"]] == [
        *(VECTORS[word] for word in ("the", "bank", ",", "the", "river", "bank")),
        *(VECTORS["the"] if word == "the" else None for word in ("state", "-", "of", "-", "the", "-", "art")),
        *(None, None),
    ]
    mean = np.mean([VECTORS[word] for word in ("the", "bank", ",", "the", "river", "bank")], axis=0)
    sentences = store.numpy("sentence", "layer_00")
    np.testing.assert_allclose(sentences[:2], [mean, VECTORS["the"]], rtol=1e-6)
    assert np.isnan(sentences[2:]).all()
    # Given words are looked up as they are.
    found = vectors_of(path, [["state-of-the-art", "Bank", "bank,"]], "word")
    assert found[:2].tolist() == [VECTORS["state-of-the-art"], VECTORS["bank"]]
    assert np.isnan(found[2]).all()
    cased = write_vectors(tmp_path / "cased.vec", {**VECTORS, "Bank": [7, 7, 7]})
    found = vectors_of(cased, ["the The Bank"], "word")
    assert found[[0, 2]].tolist() == [VECTORS["the"], [7, 7, 7]]
    assert np.isnan(found[1]).all()


def test_unknown_words_may_be_zeros(tmp_path: Path, glove: Path) -> None:
    flags = ("--model", glove, "--level", "word,sentence", "--store-dtype", "float32")
    good("extract", CONLL, "-o", tmp_path / "zero", *flags, "--unknown-words", "zero")
    zero = bertfeat.open_store(tmp_path / "zero")
    null = bertfeat.extract(CONLL, tmp_path / "null", model=str(glove), levels="word,sentence", **EXACT)
    assert zero.valid("word", "layer_00").all()
    assert np.array_equal(zero.numpy("word", "layer_00"), np.nan_to_num(null.numpy("word", "layer_00")))
    assert np.array_equal(zero.numpy("sentence", "layer_00"), null.numpy("sentence", "layer_00"), equal_nan=True)
    probe = bertfeat.fit_probe(zero, "label", level="word", head="centroid")
    assert probe.predict(["the qqq"])["prediction"].null_count() == 0
    with pytest.raises(UserError, match="unknown words"):
        probe.score(null)


def test_a_store_grows_is_verified_and_probed(tmp_path: Path, glove: Path) -> None:
    store = tmp_path / "store"
    flags = ("--model", glove, "--level", "word,sentence")
    good("extract", CONLL, "-o", store, *flags)
    assert "already complete" in good("extract", CONLL, "-o", store, *flags).out
    more = tmp_path / "more.conll"
    more.write_text("the\tO\nqqq\tO\n\n")
    assert "1 document appended" in good("extract", more, "-o", store, "--append").out
    assert good("verify", store, "--deep").out.startswith(f"{store}: good")
    probe = bertfeat.fit_probe(store, "label", level="word", head="centroid")
    assert probe.predict(["the zzzz"])["prediction"].is_null().to_list() == [False, True]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--layers", "3"), "--layers '3': {} holds static vectors, which are layer 0 only"),
        (("--level", "token"), "--level token: a token is a word"),
        (("--pooling", "cls"), "--pooling cls cannot be used with the static vectors of {}; use mean or max"),
        (("--compute-dtype", "bfloat16"), "--compute-dtype bfloat16 has no effect"),
        (("--document-context", "--document-column", "part"), "--document-context has no effect"),
        (("--prompt", "query: "), "--prompt 'query: ' has no effect"),
        (("--model", "minilm", "--level", "word", "--unknown-words", "zero"), "--unknown-words has an effect with"),
    ],
)
def test_settings_without_meaning_are_refused(
    tmp_path: Path, glove: Path, flags: Sequence[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(glove.parent)
    level = () if "--level" in flags else ("--level", "sentence")
    model = () if "--model" in flags else ("--model", "glove.txt")
    (tmp_path / "corpus.csv").write_text("text,part\nthe river,1\n")
    where = (tmp_path / "corpus.csv", "-o", tmp_path / "s")
    done = run("extract", *where, *model, *level, *flags)
    assert done.code == 2
    assert said.format("glove.txt") in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


PIECES = ["the", "bank", "river", "##s", ",", ".", "a", "of", "and", "to", "in", "is", "it", "for", "python", "##er"]
# The median length of a piece is then 5 characters: model2vec cuts a text after 512 times as many, even in a word.
PIECES += [f"{letter}word" for letter in "cdghjkmnpqrtuvwxyzCDGHJKMNPQRTUVWXYZ"]


def model2vec_lines() -> list[str]:
    lines = (DATA / "peps.txt").read_text("utf-8").splitlines()[:30]
    long = ["the bank of the river " * 200, "a is " * 600, "to " * 853 + "to rivers" * 9_000, "hword" * 600 + " the"]
    # Few tokens are left of a text that has too many.
    few = "the " + "preposterousness " * 600
    return [*lines, "rivers, banks: qqq", "qqq", "the", few, *long]


def own_encode(folder: Path, texts: Sequence[str], *, max_length: int | None = None) -> Iterator[np.ndarray[Any, Any]]:
    """`StaticModel.encode` of model2vec 0.10, as a few lines."""
    arrays, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    unknown = tokenizer.token_to_id("[UNK]")
    for text in texts:
        chars = max_length and max_length * int(np.median([*map(len, tokenizer.get_vocab())]))
        ids = np.array(tokenizer.encode(text[:chars], add_special_tokens=False).ids[:max_length], np.int64)
        ids = ids[ids != unknown]
        vectors = arrays["embeddings"].astype(np.float64)[arrays["mapping"][ids] if "mapping" in arrays else ids]
        if "weights" in arrays:
            vectors = vectors * arrays["weights"][ids, None]
        mean = vectors.mean(axis=0) if len(ids) else np.full(vectors.shape[1], np.nan)
        yield mean / (np.linalg.norm(mean) if config["normalize"] else 1)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "not normalized": {"normalize": False},
    "quantized": {"n_rows": 5, "has_weights": True},
    "half": {"dtype": "float16", "max_length": None},
}


@pytest.mark.promise("static")
@pytest.mark.filterwarnings("ignore:.* this document is:bertfeat.errors.BertfeatWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_sentences_of_model2vec_equal_its_encode(tmp_path: Path, kind: str) -> None:
    settings = KINDS[kind]
    folder, corpus = write_model2vec(tmp_path / "m2v", pieces=PIECES, **settings), tmp_path / "corpus.txt"
    lines = model2vec_lines()
    corpus.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    asked = {"model": str(folder), "pooling": "model", **EXACT}
    store = bertfeat.extract(corpus, tmp_path / "store", levels="token,word,sentence", **asked)
    np.testing.assert_allclose(store.numpy("sentence", "embedding"), [*own_encode(folder, lines)], atol=2e-5)
    if (length := settings.get("max_length", 512)) is None:
        done = run("extract", corpus, "-o", tmp_path / "cut", "--model", folder, "--pooling", "model", *TRUNCATE)
        assert (done.code, "have no limit" in done.err) == (2, True)
    else:
        cut = bertfeat.extract(corpus, tmp_path / "cut", levels="sentence", on_overlong="truncate", **asked)
        expected = [*own_encode(folder, lines, max_length=length)]
        np.testing.assert_allclose(cut.numpy("sentence", "embedding"), expected, atol=2e-5)
        assert cut.polars("sentence")["truncated"].to_list()[-7:] == [False, False, *[True] * 5]
    tokens = store.polars("token", ["token", "layer_00"])
    assert tokens.filter(pl.col("layer_00").is_null())["token"].unique().to_list() == ["[UNK]"]
    assert not tokens["token"].is_in(["[CLS]"]).any()


@pytest.mark.promise("static")
@pytest.mark.peer
@pytest.mark.parametrize("kind", [*KINDS, "gensim"])
def test_vectors_equal_the_peers(tmp_path: Path, kind: str, glove: Path) -> None:
    """`STATIC_PYTHON` names the interpreter of an environment with gensim and model2vec (pip install of both)."""
    library = "gensim" if kind == "gensim" else "model2vec"
    python = os.environ.get("STATIC_PYTHON") or (sys.executable if find_spec(library) else None)
    if python is None:
        pytest.skip(f"{library} is not installed; point STATIC_PYTHON at the python of an environment that has it")
    corpus, out = tmp_path / "corpus.json", tmp_path / "vectors.npy"
    script = [python, str(TESTS / "peers" / "static_vectors.py"), library]
    if kind == "gensim":
        # Each layout that gensim reads; words that are repeated, and numbers of every size.
        table = read(glove)
        for layout in ("word2vec.txt", "fasttext.vec", "word2vec.bin", "word2vec.c.bin", "glove.txt"):
            path = write_vectors(tmp_path / f"v.{layout}", table, layout=layout)
            if layout.endswith("txt"):
                body = path.read_text("utf-8").replace(f"{len(table)} 20\n", f"{len(table) + 1} 20\n")
                path.write_text(body + "the " + " ".join(["7"] * 20) + "\n", encoding="utf-8")
            words = conll_words()
            corpus.write_text(json.dumps(words), encoding="utf-8")
            subprocess.run([*script, str(path), str(corpus), str(out)], check=True, timeout=300)
            np.testing.assert_array_equal(vectors_of(path, words, "word"), np.load(out))
            means = np.load(out.with_suffix(".means.npy"))
            np.testing.assert_allclose(vectors_of(path, words, "sentence"), means, atol=1e-6)
        return
    folder, lines = write_model2vec(tmp_path / "m2v", pieces=PIECES, **KINDS[kind]), model2vec_lines()
    corpus.write_text(json.dumps(lines), encoding="utf-8")
    subprocess.run([*script, str(folder), str(corpus), str(out)], check=True, timeout=300)
    cut = {} if KINDS[kind].get("max_length", 512) is None else {"on_overlong": "truncate"}
    found = vectors_of(folder, lines, "sentence", pooling="model", **cut)
    # model2vec gives zeros where no token is known, and rounds to the type of the file.
    vectors = np.nan_to_num(found)
    np.testing.assert_allclose(vectors, np.load(out), atol=2e-3 if kind == "half" else 2e-5)
