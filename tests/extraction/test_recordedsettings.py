"""Stores that were made when settings without effect were recorded: they are read, resumed, appended to and checked."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from bertfeat.config import ExtractConfig
from bertfeat.errors import ConfigError, PlanMismatch
from bertfeat.extraction.deepcheck import recheck
from bertfeat.extraction.run import append, extract
from bertfeat.store import open_store, verify
from tests.support.cli_runs import three_shards
from tests.support.drill import result_files, write_corpus

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.numeric]

IGNORED = {"pooling": "max", "include_special_tokens": True, "stride": 3, "document_column": "id"}
OF_POOLER = {"layers": "1,2", "combine": "sum", "word_pooling": "mean"}


@pytest.fixture(scope="module", params=["word", "pooler"])
def made(request, tmp_path_factory, model):
    """Settings, and a store of them that also has settings without effect, as earlier versions made it."""
    folder = tmp_path_factory.mktemp(request.param)
    settings = {**three_shards(folder, model), "combine": "none", "on_overlong": "truncate", "max_length": 12}
    settings.pop("pooling", None)
    if request.param == "word":
        settings |= {"levels": "word", "layers": "1,2"}
        ignored = IGNORED
    else:
        settings |= {"levels": "sentence", "pooling": "pooler"}
        ignored = OF_POOLER
        settings = {name: value for name, value in settings.items() if name not in ("layers", "combine")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExtractConfig, "refuse_ignored", lambda self, given: None)
        return settings, ignored, extract(output=folder / "s", **settings | ignored).path


def test_it_is_read_and_checked_in_depth(made):
    _, ignored, path = made
    store = open_store(path)
    recorded = {name: store.plan.fields[name] for name in ignored}
    assert recorded != {name: ExtractConfig().planned()[name] for name in ignored}
    assert verify(path).is_good
    assert recheck(path, n_documents=5).is_good


def test_the_command_without_them_finds_it_complete_and_resumes_it(made, tmp_path):
    settings, ignored, path = made
    before = result_files(path)
    with pytest.raises(ConfigError, match="has no effect"):
        extract(output=path, **settings | ignored)
    assert result_files(extract(output=path, **settings).path) == before
    root = shutil.copytree(path, tmp_path / "s")
    (root / "manifest.json").unlink()
    for file in [*root.rglob("part-00001.parquet"), *root.glob("_bertfeat/receipts/*00001*")]:
        file.unlink()
    assert result_files(extract(output=root, **settings).path) == before
    with pytest.raises(PlanMismatch, match="max_length"):
        extract(output=root, **settings | {"max_length": 11})


def test_it_is_appended_to(made, tmp_path):
    settings, ignored, path = made
    root = shutil.copytree(path, tmp_path / "s")
    lines = write_corpus(tmp_path / "all.jsonl", 54).read_text().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_text("".join(lines[48:]))
    with pytest.raises(ConfigError, match="has no effect"):
        append(root, tmp_path / "b.jsonl", **ignored)
    n_before = len(open_store(root))
    store = append(root, tmp_path / "b.jsonl")
    assert len(store) == n_before + 6
    level = settings["levels"]
    apart = extract(output=tmp_path / "apart", **settings | {"inputs": tmp_path / "b.jsonl"})
    feature = store.features(level)[0].name
    added = store.numpy(level, feature)[-apart.n_rows(level) :]
    assert np.array_equal(added, apart.numpy(level, feature), equal_nan=True)
    assert verify(root).is_good
