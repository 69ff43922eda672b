"""The model's own sentence embedding: equal to sentence-transformers, recorded in the store, and used by an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer

from bertfeat import build_index, extract, fit_probe, load_probe, open_index
from bertfeat.encoder.packaged import minilm
from bertfeat.errors import CheckpointError, ConfigError, PlanMismatch, UserError
from bertfeat.extraction.deep_check import recheck
from tests.support.families import build_model
from tests.support.sentence_models import MODES, save_sentence_model

pytestmark = pytest.mark.numeric

# Of different lengths; the last is longer than the tiny models take.
TEXTS = ["The fox", "She sells sea shells by the sea shore.", "", "42", "naïve café owners", "the sea " * 30]
FAMILIES = ("bert", "roberta", "xlm-roberta")
PROMPTS = {"query": "search: ", "document": "text: ", "none": ""}
# The vectors of several modes are joined, so that each mode is compared.
CASES: dict[str, dict[str, Any]] = {
    "all": {"modes": MODES},
    "joined": {"modes": ["lasttoken", "mean"], "normalize": True},
    "dense": {"dense": [{"out_features": 12}], "normalize": True},
    "two dense": {"modes": ["cls", "max"], "dense": [{"out_features": 40, "bias": False}, {"out_features": 8}]},
}


def own(texts: list[str], folder: Path, model: Path, **settings: Any) -> np.ndarray:
    """Extract the model's own sentence embeddings of texts that are cut as sentence-transformers cuts them."""
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    chosen = {"levels": "sentence", "pooling": "model", "store_dtype": "float32", "on_overlong": "truncate"}
    store = extract(corpus, folder / "store", model=str(model), overwrite=True, **{**chosen, **settings})
    return store.numpy("sentence", "embedding")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models of three tokenizers; which no test may change."""
    folder = tmp_path_factory.mktemp("models")
    return {name: build_model(name, folder / name, num_hidden_layers=2) for name in FAMILIES}


@pytest.mark.promise("sentence")
@pytest.mark.parametrize(
    ("case", "family"), [*((case, "bert") for case in CASES), *(("all", name) for name in FAMILIES[1:])]
)
def test_every_pooling_equals_sentence_transformers(case: str, family: str, tiny, tmp_path) -> None:
    model = save_sentence_model(tiny[family], tmp_path / "model", **CASES[case], prompts=PROMPTS, max_length=24)
    oracle = SentenceTransformer(str(model), device="cpu")
    for name in (None, "query"):
        expected, found = oracle.encode(TEXTS, prompt_name=name), own(TEXTS, tmp_path, model, prompt_name=name)
        assert found.shape == expected.shape
        n_modes = len(MODES) if case == "all" else 1
        for ours, theirs in zip(np.hsplit(found, n_modes), np.hsplit(expected, n_modes), strict=True):
            assert np.abs(ours - theirs).max() < 1e-5 * max(1, np.abs(theirs).max())


@pytest.mark.promise("sentence")
@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_prompt_counts_as_the_model_says(include_prompt: bool, tiny, tmp_path) -> None:
    settings: dict[str, Any] = {"prompts": PROMPTS, "default_prompt_name": "document", "include_prompt": include_prompt}
    modes = ["cls", "mean", "weightedmean", "lasttoken", "max"]
    model = save_sentence_model(tiny["bert"], tmp_path / "model", modes=modes, **settings)
    oracle = SentenceTransformer(str(model), device="cpu")
    for asked in ({}, {"prompt": "Find the sea: "}, {"prompt_name": "query"}, {"prompt": ""}):
        # The default prompt is used unless another one, or none, is asked for.
        expected = oracle.encode(TEXTS, **(asked if asked != {"prompt": ""} else {"prompt_name": "none"}))
        assert np.abs(own(TEXTS, tmp_path, model, **asked) - expected).max() < 1e-5


@pytest.mark.promise("sentence")
def test_minilm_equals_sentence_transformers_on_real_text(tmp_path) -> None:
    paragraphs = Path("examples/data/peps.txt").read_text("utf-8").splitlines()
    oracle = SentenceTransformer(str(minilm().folder), device="cpu")
    for prompt, lines in ((None, paragraphs[::12]), ("query: ", paragraphs[1::24])):
        expected = oracle.encode(lines, prompt=prompt)
        assert np.abs(own(lines, tmp_path, Path("minilm"), prompt=prompt) - expected).max() < 1e-5


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_what_a_model_does_not_have_is_named(tiny, tmp_path) -> None:
    corpus = write(tmp_path / "c.txt", ["the sea"])
    settings: dict[str, Any] = {"levels": "sentence", "pooling": "model"}
    with pytest.raises(CheckpointError, match=r"`pooling='model'`: .*bert has no modules.json.*; pass `pooling='mean'"):
        extract(corpus, tmp_path / "s", model=str(tiny["bert"]), **settings)
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS)
    with pytest.raises(ConfigError, match=r"`prompt_name` 'qeury'.*choose one of document, none, query"):
        extract(corpus, tmp_path / "s", model=str(model), prompt_name="qeury", **settings)
    with pytest.raises(ConfigError, match=r"`max_length=5` leaves .* tokens .* of the prompt; at least 1"):
        extract(corpus, tmp_path / "s", model=str(model), prompt="the sea shore of the sea ", max_length=5, **settings)
    assert not (tmp_path / "s").exists()


def test_prompt_and_embedding_are_part_of_the_plan(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS)
    settings: dict[str, Any] = {"model": str(model), "levels": "word,sentence", "layers": "-1", "pooling": "model"}
    corpus = write(tmp_path / "c.txt", TEXTS[:2])
    store = extract(corpus, tmp_path / "s", prompt_name="query", **settings)
    assert store.plan.fields["prompt"] == store.metadata["prompt"] == "search: "
    assert not recheck(store.path).problems
    # The text of the prompt counts, not the way in which it was given.
    assert extract(corpus, tmp_path / "s", prompt="search: ", **settings).plan == store.plan
    with pytest.raises(PlanMismatch, match="`prompt` was 'search: ', now 'find: '"):
        extract(corpus, tmp_path / "s", prompt="find: ", **settings)
    save_sentence_model(tiny["bert"], tmp_path / "own", modes=["max"], prompts=PROMPTS)
    with pytest.raises(PlanMismatch, match=r"digest of the model's sentence embedding was "):
        extract(corpus, tmp_path / "s", prompt_name="query", **settings)
    plain = extract(corpus, tmp_path / "p", **{**settings, "pooling": "mean"})
    assert not {"prompt", "prompt_name", "model.sentence_sha256"} & plain.plan.fields.keys()


def test_queries_do_not_have_the_prompt_for_documents(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts={"document": "text: "}, normalize=True)
    file = model / "config_sentence_transformers.json"
    # sentence-transformers 5 adds an empty prompt for queries; older ones do not.
    file.write_text(json.dumps({**json.loads(file.read_text()), "prompts": {"document": "text: "}}))
    settings: dict[str, Any] = {"model": str(model), "store_dtype": "float32", "levels": "sentence", "pooling": "model"}
    store = extract(write(tmp_path / "c.txt", TEXTS[:2]), tmp_path / "s", prompt_name="document", **settings)
    found = build_index(store, tmp_path / "i").encode(["sea shells"]).vectors
    expected = SentenceTransformer(str(model), device="cpu").encode_query(["sea shells"])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_queries_have_the_prompt_of_the_model_for_queries(tiny, tmp_path) -> None:
    model = save_sentence_model(tiny["bert"], tmp_path / "own", prompts=PROMPTS, normalize=True)
    oracle = SentenceTransformer(str(model), device="cpu")
    settings: dict[str, Any] = {"model": str(model), "levels": "sentence", "store_dtype": "float32", "layers": "-1"}
    corpus = write(tmp_path / "c.txt", [text for text in TEXTS[:5] if text])
    store = extract(corpus, tmp_path / "s", pooling="model", prompt_name="document", **settings)
    index = build_index(store, tmp_path / "i")
    assert index.origin.query_prompt == "search: "
    found = open_index(tmp_path / "i").encode(["sea shells"]).vectors
    np.testing.assert_allclose(found, oracle.encode_query(["sea shells"]), atol=1e-5)
    np.testing.assert_allclose(
        store.numpy("sentence", "embedding"), oracle.encode_document(TEXTS[:2] + TEXTS[3:5]), atol=1e-5
    )
    other = build_index(store, tmp_path / "i-document", query_prompt_name="document")
    expected = oracle.encode(["sea shells"], prompt="text: ")
    np.testing.assert_allclose(other.encode(["sea shells"]).vectors, expected, atol=1e-5)
    with pytest.raises(UserError, match="query_prompt was 'text: ', now 'search: '"):
        build_index(store, tmp_path / "i-document")
    with pytest.raises(UserError, match=r"`query_prompt_name` 'qeury'.*choose one of document, none, query"):
        build_index(store, tmp_path / "other", query_prompt_name="qeury")


def test_a_changed_dense_layer_is_another_model_for_indexes_and_probes(tiny, tmp_path) -> None:
    dense: dict[str, Any] = {"dense": [{"out_features": 8}]}
    model = save_sentence_model(tiny["bert"], tmp_path / "own", **dense)
    (tmp_path / "c.jsonl").write_text("".join(f'{{"text": "the sea {n}", "label": "{n % 2}"}}\n' for n in range(6)))
    settings: dict[str, Any] = {"model": str(model), "levels": "sentence", "pooling": "model"}
    store = extract(tmp_path / "c.jsonl", tmp_path / "s", keep_columns="label", **settings)
    build_index(store, tmp_path / "i").encode(["the sea"])
    fit_probe(store, "label", head="centroid").save(tmp_path / "p")
    assert load_probe(tmp_path / "p").predict(["the sea 1"]).height == 1
    path = model / "2_Dense" / "model.safetensors"
    save_file({name: values + 1 for name, values in load_file(path).items()}, path)
    for use in (
        lambda: open_index(tmp_path / "i").encode(["the sea"]),
        lambda: load_probe(tmp_path / "p").predict(["the sea"]),
    ):
        with pytest.raises(
            UserError, match=r"has sentence embedding of the model .*; model .* has sentence embedding of the model "
        ):
            use()
