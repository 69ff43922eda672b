"""Imported stores in use: they probe and search as the stores that their vectors come from, without a model."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.errors import StoreError, UserError
from bertfeat.extraction.deep_check import recheck
from tests.support.command_line import good, refused

pytestmark = [pytest.mark.promise("probes"), pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def imported(tmp_path_factory, stores):
    """Word stores of npy with a table, and sentence stores of Parquet, of the vectors of the shared stores."""
    folder = tmp_path_factory.mktemp("imported")
    found = {}
    for name in ("words_train", "words_dev"):
        store = getattr(stores, name)
        names = [feature.name for feature in store.features("word")]
        np.save(folder / "v.npy", np.stack([store.numpy("word", feature) for feature in names], axis=1))
        store.polars("word").drop(names).write_parquet(folder / "rows.parquet")
        found[name] = bertfeat.import_vectors(
            folder / "v.npy", folder / name, level="word", ids=folder / "rows.parquet"
        )
        (folder / "v.npy").unlink()
    for name in ("train", "dev"):
        getattr(stores, name).polars("sentence").write_parquet(folder / "t.parquet")
        found[name] = bertfeat.import_vectors(folder / "t.parquet", folder / name, level="sentence")
    return found


@pytest.mark.parametrize(("feature", "same"), [("layer_05", "layer_02"), ("concat_last4", "concat_last4")])
def test_words_probe_to_equal_scores(stores, imported, feature, same):
    there, here = stores.words_train, imported["words_train"]
    assert here.polars("word", list(there.columns("word"))[:-4]).equals(
        there.polars("word", list(there.columns("word"))[:-4])
    )
    assert np.array_equal(there.numpy("word", feature), here.numpy("word", same), equal_nan=True)
    assert not here.valid("word", same).all()
    probe = bertfeat.fit_probe(there, "label", level="word", feature=feature, head="centroid")
    again = bertfeat.fit_probe(here, "label", level="word", feature=same, head="centroid")
    assert probe.score(stores.words_dev).to_dict() == again.score(imported["words_dev"]).to_dict()


def test_indexes_find_rows_by_vectors(tmp_path, stores, imported):
    for name, store in (("here", imported["train"]), ("there", stores.train)):
        good("index", "build", store.path, "-o", tmp_path / name, "--factory", "Flat")
    queries = stores.dev.numpy("sentence", "concat_last4").astype(np.float32)[:4]
    with bertfeat.open_index(tmp_path / "here") as here, bertfeat.open_index(tmp_path / "there") as there:
        found = here.search(queries, k=3)
        assert found.equals(there.search(queries, k=3))
        assert found.columns == ["query", "rank", "score", "doc_id", "text"]
    good("index", "eval", tmp_path / "here")
    assert good("inspect", tmp_path / "here", "--json").json["spec"]["model"] == "imported"
    said = refused("search", tmp_path / "here", "some words")
    assert "was imported (imported), so no model is known that encodes new texts; import vectors of these texts" in said


def test_what_needs_the_model_is_refused(tmp_path, stores, imported):
    (tmp_path / "t.txt").write_text("One text.\n")
    store = imported["train"].path
    probe = bertfeat.fit_probe(store, "domain", head="centroid")
    probe.save(tmp_path / "p")
    with pytest.raises(UserError, match=r"was imported \(imported\), so no model is known that encodes new texts"):
        probe.predict(["one"])
    said = refused("probe", "predict", tmp_path / "p", tmp_path / "t.txt", "-o", tmp_path / "out.parquet")
    assert "import vectors of these texts too and pass their store" in said
    said = refused("extract", tmp_path / "t.txt", "-o", store, "--append")
    assert "imported, and an append needs the model of the vectors; import all vectors into a new store" in said
    with pytest.raises(StoreError, match=r"imported from t\.parquet, and a deep check needs the model"):
        recheck(store)
    # A store is not a model, whoever made its vectors.
    with pytest.raises(UserError, match=r"config\.json"):
        bertfeat.Encoder(str(store))
    with pytest.raises(UserError, match=r"(?s)probe .*imported.* has model"):
        probe.score(stores.dev)


def test_features_of_other_names_or_widths_do_not_go_together(tmp_path, imported):
    probe = bertfeat.fit_probe(imported["train"], "domain", head="centroid")
    imported["dev"].polars("sentence").write_parquet(tmp_path / "t.parquet")
    other = bertfeat.import_vectors(tmp_path / "t.parquet", tmp_path / "o", level="sentence", model="glove")
    with pytest.raises(UserError, match=r"has model 'imported'.* has model 'glove'"):
        probe.score(other)
    half = imported["dev"].polars("sentence").with_columns(pl.col("concat_last4").arr.head(7))
    half.write_parquet(tmp_path / "h.parquet")
    narrow = bertfeat.import_vectors(tmp_path / "h.parquet", tmp_path / "h", level="sentence")
    with pytest.raises(UserError, match=r"has width 1536.* has width 7"):
        probe.score(narrow)
