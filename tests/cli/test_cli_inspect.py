"""`bertfeat inspect` of a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers")

from tests.support.command_line import bertfeat, good
from tests.support.sentence_models import save_sentence_model


@pytest.fixture(scope="module")
def saved(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = {"query": "ask: ", "passage": "text: "}
    return save_sentence_model(
        tiny_folder,
        tmp_path_factory.mktemp("saved") / "model",
        modes=("cls", "mean"),
        dense=[{"out_features": 8}],
        max_length=40,
        prompts=prompts,
        default_prompt_name="passage",
    )


def refused(*arguments: str | Path) -> str:
    result = bertfeat("inspect", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    return result.err


def test_a_model_by_name() -> None:
    lines = good("inspect", "minilm").out.splitlines()
    assert lines[0] == "minilm: BERT, 22,713,728 parameters"
    assert "size       6 layers, 384 wide" in lines
    assert "limit      512 tokens, tuned on 256" in lines
    assert "embedding  mean with special tokens, then normalises; 384 values" in lines
    assert "weights    sha256 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db" in lines
    assert lines[-2:] == ["prompts    none", "flags      --level sentence --pooling model"]


def test_a_model_folder_with_prompts_and_a_dense_layer(saved: Path) -> None:
    lines = good("inspect", saved).out.splitlines()
    assert "limit      64 tokens, tuned on 40" in lines
    assert "embedding  first token and mean joined, then a dense layer (64 to 8, tanh); 8 values" in lines
    assert "prompts    document '', passage 'text: ' (the default), query 'ask: '" in lines
    assert lines[-1] == "flags      --level sentence --pooling model --prompt-name passage"
    found = good("inspect", saved, "--json").json
    assert found["embedding"] | {"sha256": None} == {
        "description": "first token and mean joined, then a dense layer (64 to 8, tanh)",
        "dim": 8,
        "modes": ["cls", "mean"],
        "include_prompt": True,
        "sha256": None,
    }
    assert (found["max_length"], found["tuned_length"], found["n_layers"], found["hidden_size"]) == (64, 40, 3, 32)
    assert found["prompts"] == {"document": "", "passage": "text: ", "query": "ask: "}


def test_the_flags_that_it_names_work(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("one fox\nshe sells sea shells\n")
    flags = good("inspect", saved, "--json").json["flags"].split()
    good("extract", tmp_path / "corpus.txt", "-o", tmp_path / "out", "--model", saved, *flags)
    assert good("inspect", tmp_path / "out", "--json").json["levels"]["sentence"]["features"] == {"embedding": 8}


def test_a_model_without_an_embedding_of_its_own(tiny_folder: Path) -> None:
    lines = good("inspect", tiny_folder).out.splitlines()
    assert "embedding  its folder describes none (no modules.json)" in lines
    assert "limit      64 tokens" in lines
    assert lines[-1] == "flags      --level sentence --pooling mean"
    assert good("inspect", tiny_folder, "--json").json["embedding"] is None


def test_a_model_with_a_module_that_is_not_supported(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "custom_st.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    out = good("inspect", folder).out
    assert "embedding  " + str(folder / "modules.json") + ": module type 'custom_st.Dense' is not supported" in out
    assert "--pooling mean" in out


def test_a_folder_is_a_store_if_it_has_a_manifest(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("one fox\n")
    good("extract", tmp_path / "corpus.txt", "-o", tmp_path / "out", "--model", tiny_folder, "--layers", "-1")
    shutil.copy(tiny_folder / "config.json", tmp_path / "out")
    assert good("inspect", tmp_path / "out").out.startswith(f"{tmp_path / 'out'}: 1 documents")


def test_things_that_are_neither(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert "not a bertfeat store" in refused(tmp_path / "folder")
    assert "not a bertfeat store" in refused(tmp_path / "file")
    assert "no such folder" in refused("./nothing")
    assert "file name too long" in refused("x" * 5000)
    assert "no such folder" in refused("owner/nothing")
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors in it" in refused(folder)
    (folder / "config.json").unlink()
    assert "no config.json in it" in refused(folder)
    # An installed model package has its name, whatever folder is there.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    assert good("inspect", "minilm").out.startswith("minilm: BERT")
