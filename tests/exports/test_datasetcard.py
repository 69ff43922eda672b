"""Cards: a store with its card is a data set for `datasets`, offline, and the numbers of the card are the store's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import bertfeat
from bertfeat.choices import Level
from bertfeat.exports import dataset_card
from bertfeat.extraction.importing import import_vectors
from bertfeat.store.verification import verify
from tests.support.command_line import good, refused
from tests.support.store_fakes import make_plan, write_store
from tests.support.vector_files import N_WORDS, numbers, write_conll, write_npy

pytestmark = pytest.mark.numeric


@pytest.mark.promise("pages")
def test_datasets_reads_a_store_with_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    vectors = write_npy(tmp_path / "v.npy", numbers(N_WORDS, 2, 3))
    ids = write_conll(tmp_path / "c.conll")
    store = import_vectors(vectors, tmp_path / "s", level="word", ids=ids, shard_bytes=1)
    assert len(store.parts("word")) > 1
    card = store.path / "README.md"
    good("card", store.path, "-o", card, "--license", "cc-by-4.0")
    rows = datasets.load_dataset(str(store.path), "word", cache_dir=str(tmp_path / "cache"))["train"]
    assert np.array_equal(np.array(rows["layer_01"][:], np.float16), store.numpy("word", "layer_01"))
    assert rows["word"][:] == store.polars("word", ["word"])["word"].to_list()
    _, head, body = card.read_text("utf-8").split("---\n", 2)
    facts = yaml.safe_load(head)
    assert (facts["license"], facts["size_categories"]) == ("cc-by-4.0", ["n<1K"])
    assert f"| word | a word | {N_WORDS} | " in body
    assert facts["task_categories"] == ["feature-extraction"]
    assert {"hidden-states", "feature-extraction"} < set(facts["tags"])
    # What the card says to run, runs.
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for code in re.findall("```python\n(.*?)```", body, re.DOTALL):
        names: dict[str, Any] = {}
        exec(code.replace("FOLDER", str(store.path)), names)
        assert len(names.get("rows", names.get("vectors"))) == N_WORDS
    # The card changes nothing for bertfeat.
    assert verify(store.path).is_good
    assert "there is a file already" in refused("card", store.path, "-o", card)


@pytest.mark.promise("pages")
def test_it_is_printed_and_says_nothing_about_the_machine(tmp_path: Path, tiny_folder: Path) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text("the bank\n")
    settings = {"levels": "word,sentence", "layers": "0,-1", "prompt": "find `it`: "}
    store = bertfeat.extract(corpus, tmp_path / "s", model=str(tiny_folder), **settings)
    card = good("card", store.path).out
    assert card == dataset_card(store)
    assert str(tiny_folder.parent) not in card
    assert f"# Features of `{tiny_folder.name}`" in card
    assert "- prompt: `find 'it': `\n" in card


def test_only_a_model_of_the_hub_has_a_link(tmp_path: Path) -> None:
    """A folder may be called like a model, but only a model of the hub has a revision."""
    for number, (model, revision) in enumerate([("owner/name", "1f2e"), ("owner/name", None), ("a/b/c", "1f2e")]):
        plan = make_plan(levels=(Level.SENTENCE,))
        plan.metadata.update(model=model, revision=revision)
        write_store(tmp_path / str(number), plan)
        link = "[owner/name](https://huggingface.co/owner/name)"
        assert (link in dataset_card(tmp_path / str(number))) == (number == 0)


@pytest.mark.promise("pages")
def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Names of models and columns end no line, no cell and no code, in YAML and in Markdown."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"doc_id": "a", "`a|b`\n<script>": 1}) + "\n")
    vectors = write_npy(tmp_path / "v.npy", numbers(1, 2))
    for model in ('x`|\n---\n<script>\U0001f600\x9f"\\', "/home/me/mine"):
        settings = {"level": "sentence", "ids": tmp_path / "rows.jsonl", "model": model, "overwrite": True}
        card = dataset_card(import_vectors(vectors, tmp_path / "s", **settings), license='a"b\n: #')
        start, head, body = card.split("---\n", 2)
        assert (start, yaml.safe_load(head)["license"]) == ("", 'a"b : #')
        assert "---\n" not in body.replace("|---|---|---|---|---|---|\n", "")
        assert "`'a\\|b' <script>`" in body
        assert "/home" not in card
