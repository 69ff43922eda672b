"""A model's own sentence embedding: read as sentence-transformers reads it, computed as it computes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("sentence_transformers")

from sentence_transformers import SentenceTransformer

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.sentence_files import ACTIVATIONS, read_prompts, read_sentence_model
from bertfeat.encoder.sentence_model import Prompts, SentenceModel
from bertfeat.encoder.sentence_steps import load_steps
from bertfeat.errors import CheckpointError, ConfigError
from tests.support.families import HIDDEN
from tests.support.hostile_pickles import calls
from tests.support.sentence_models import MODES, respell, save_sentence_model

TANH = torch.nn.Tanh()
DENSE = "2_Dense/model.safetensors"


@pytest.fixture(scope="module")
def saved(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """First token and mean joined, a dense layer, unit length, two prompts."""
    return save_sentence_model(
        good,
        tmp_path_factory.mktemp("saved") / "model",
        modes=("cls", "mean"),
        dense=[{"out_features": 8, "activation_function": TANH}],
        normalize=True,
        prompts={"query": "q: ", "passage": "p: "},
    )


@pytest.fixture
def hostile(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "hostile"))


def read(folder: Path) -> SentenceModel:
    found = open_checkpoint(str(folder)).sentence_model()
    assert found is not None
    return found


def oracle(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu")


def refusal(folder: Path) -> str:
    """Read a folder that must be refused; the model itself still opens. Return the message."""
    checkpoint = open_checkpoint(str(folder))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.sentence_model()
    message = str(caught.value)
    assert str(folder) in message
    assert message.isprintable()
    return message.replace(str(folder), "")


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_module(folder: Path, number: int, **changes: Any) -> None:
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    modules[number] |= changes
    path.write_text(json.dumps(modules))


@pytest.mark.parametrize("modes", [("lasttoken",), ("mean", "cls"), MODES])
def test_modes_and_length_are_those_of_sentence_transformers(
    good: Path, tmp_path: Path, modes: tuple[str, ...]
) -> None:
    folder = save_sentence_model(good, tmp_path / "new", modes=modes, include_prompt=False, max_length=17)
    found = read(folder)
    assert (found.modes, found.include_prompt, found.max_length) == (modes, False, 17)
    assert found.dim(HIDDEN) == len(modes) * HIDDEN
    respell(folder, max_length=12)
    old, theirs = read(folder), oracle(folder)
    pooled = theirs[1].pooling_mode
    assert old.modes == ((pooled,) if isinstance(pooled, str) else pooled)
    assert (old.include_prompt, old.max_length) == (True, 12) == (theirs[1].include_prompt, theirs.max_seq_length)


def test_every_decision_changes_the_digest_and_its_spelling_does_not(saved: Path, hostile: Path) -> None:
    first = read(saved).sha256
    respell(hostile, max_length=5)
    assert read(hostile).sha256 == first
    shutil.rmtree(hostile)
    shutil.copytree(saved, hostile)
    digests = {first}
    for file, changes in (
        ("1_Pooling", {"pooling_mode": ["mean", "cls"]}),
        ("1_Pooling", {"include_prompt": False}),
        ("2_Dense", {"activation_function": "torch.nn.modules.activation.ReLU"}),
    ):
        change(hostile / file / "config.json", **changes)
        digests.add(read(hostile).sha256)
    before = read(hostile)
    save_file({name: array + 1 for name, array in load_file(hostile / DENSE).items()}, hostile / DENSE)
    digests.add(read(hostile).sha256)
    with pytest.raises(CheckpointError, match="changed since they were checked"):
        load_steps(before)
    modules = json.loads((hostile / "modules.json").read_text())
    (hostile / "modules.json").write_text(json.dumps(modules[:3]))
    digests.add(read(hostile).sha256)
    assert len(digests) == 6


@pytest.mark.parametrize(
    ("dense", "normalize"),
    [
        ([{"out_features": 8, "activation_function": TANH}], True),
        ([{"out_features": 48, "activation_function": torch.nn.Identity(), "bias": False}, {"out_features": 5}], False),
        ([{"out_features": 2 * HIDDEN, "activation_function": torch.nn.SiLU(), "use_residual": True}], True),
        ([], True),
        ([], False),
    ],
)
def test_steps_equal_those_of_sentence_transformers(
    good: Path, tmp_path: Path, dense: list[dict[str, Any]], normalize: bool
) -> None:
    folder = save_sentence_model(good, tmp_path / "new", modes=("max", "mean"), dense=dense, normalize=normalize)
    found = read(folder)
    vectors = torch.randn(7, 2 * HIDDEN, generator=torch.Generator().manual_seed(1))
    vectors[3] = 0
    features = {"sentence_embedding": vectors}
    with torch.inference_mode():
        for module in list(oracle(folder))[2:]:
            features = module(features)
    apply = load_steps(found, "cpu")
    out = apply(vectors)
    assert out.dtype == torch.float32
    assert (out - features["sentence_embedding"]).abs().max() < 1e-6
    alone = torch.cat([apply(row[None]) for row in vectors])
    torch.testing.assert_close(alone, out, rtol=2e-7, atol=0)
    assert apply(vectors[:0]).shape == (0, found.dim(HIDDEN))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in ACTIVATIONS), ("Tanh", torch.float16), ("Tanh", torch.bfloat16)],
)
def test_activations_and_types_of_weights_are_those_of_torch(hostile: Path, name: str, dtype: torch.dtype) -> None:
    change(hostile / "2_Dense" / "config.json", activation_function=f"torch.nn.{name}")
    save_file({key: array.to(dtype) for key, array in load_file(hostile / DENSE).items()}, hostile / DENSE)
    vectors = torch.linspace(-3, 3, 2 * 2 * HIDDEN).reshape(2, -1)
    theirs = oracle(hostile)
    expected = theirs[3](theirs[2]({"sentence_embedding": vectors}))["sentence_embedding"]
    assert (load_steps(read(hostile))(vectors) - expected).abs().max() < 1e-6


def test_prompts_follow_the_rules_of_encode_query_and_encode_document(saved: Path, hostile: Path) -> None:
    prompts = open_checkpoint(str(saved)).prompts()
    assert (prompts.query, prompts.document, prompts.default_name) == ("q: ", "p: ", None)
    assert prompts.text_of("passage") == "p: "
    with pytest.raises(ConfigError, match=r"`prompt_name` 'no': .*; choose one of document, passage, query$"):
        prompts.text_of("no")
    assert (Prompts({"corpus": "c"}).document, Prompts({"document": "d", "passage": "p"}).document) == ("c", "d")
    path = hostile / "config_sentence_transformers.json"
    change(path, prompts={"query": None, "a": "b"}, default_prompt_name="a")
    found = open_checkpoint(str(hostile)).prompts()
    assert (found.texts, found.default_name) == ({"query": "", "a": "b"}, "a")
    assert oracle(hostile).prompts == {"query": "", "document": "", "a": "b"}
    for changes in ({"prompts": ["q"]}, {"prompts": {"query": 1}}, {"default_prompt_name": "other"}):
        change(path, **changes)
        with pytest.raises(CheckpointError, match=r"config_sentence_transformers\.json: .*; correct the file$"):
            open_checkpoint(str(hostile)).prompts()


def test_module_paths_stay_inside(hostile: Path) -> None:
    shutil.copytree(hostile / "2_Dense", hostile.parent / "2_Dense")
    change_module(hostile, 2, path="../2_Dense")
    assert "leads out of the model folder" in refusal(hostile)


@pytest.mark.parametrize("file", ["modules.json", "1_Pooling/config.json", DENSE, "2_Dense"])
def test_links_that_lead_out(hostile: Path, tmp_path: Path, file: str) -> None:
    (hostile / file).rename(tmp_path / "elsewhere")
    (hostile / file).symlink_to(tmp_path / "elsewhere")
    assert "leads out of the model folder" in refusal(hostile)


@pytest.mark.parametrize(
    ("number", "changes", "reason"),
    [
        (0, {"path": "0_Transformer"}, "the Transformer lies in the folder '0_Transformer'"),
        (2, {"type": "sentence_transformers.models.Pooling"}, "not one Transformer, one Pooling"),
        (1, {"path": "4_Pooling"}, "4_Pooling/config.json: the file is missing"),
        (2, {"path": "3_Normalize"}, "missing required field `in_features`"),
        (2, {"type": "os.system"}, "module type 'os.system' is not supported"),
        (2, {"type": "sentence_transformers.models.CNN"}, "`pooling` mean, max and cls"),
    ],
)
def test_modules_that_are_refused(hostile: Path, number: int, changes: dict[str, Any], reason: str) -> None:
    change_module(hostile, number, **changes)
    assert reason in refusal(hostile)


POOLING, LAYER, TRANSFORMER = "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        (POOLING, {"embedding_dimension": 33}, "pools vectors of 33 values, and the model's have 32"),
        (POOLING, {"pooling_mode": "median"}, "Invalid enum value 'median' - at `$.pooling_mode`"),
        (POOLING, {"temperature": 2}, "unknown field `temperature`"),
        (LAYER, {"in_features": 32}, "does not fit vectors of 64"),
        (LAYER, {"out_features": 10**12}, "at `$.out_features`"),
        (LAYER, {"out_features": 9}, "not {'linear.weight': (9, 64), 'linear.bias': (9,)}"),
        (LAYER, {"activation_function": "os.system"}, "activation_function is 'os.system'"),
        (LAYER, {"activation_function": "torch.hub.load"}, "activation_function is 'torch.hub.load'"),
        (LAYER, {"module_input_name": "token_embeddings"}, "'token_embeddings' - at `$.module_input_name`"),
        (TRANSFORMER, {"max_seq_length": 0}, "at `$.max_seq_length`"),
        (TRANSFORMER, {"config_args": {"num_hidden_layers": 1}}, "in `$.config_args`"),
        (TRANSFORMER, {"do_lower_case": True}, "do_lower_case is true, but the model's tokenizer keeps capitals"),
        (TRANSFORMER, {"query_length": 32}, "unknown field `query_length`"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'"),
    ],
)
def test_settings_that_are_refused(hostile: Path, file: str, changes: dict[str, Any], reason: str) -> None:
    change(hostile / "tokenizer.json", normalizer=None)
    change(hostile / file, **changes)
    assert reason in refusal(hostile)


@pytest.mark.parametrize("name", ["2_Dense/pytorch_model.bin", DENSE])
def test_dense_weights_in_a_pickle_are_never_opened(hostile: Path, tmp_path: Path, name: str) -> None:
    (hostile / DENSE).unlink()
    (hostile / name).write_bytes(calls(tmp_path / "canary")["os.system"][0])
    message = refusal(hostile)
    assert not (tmp_path / "canary").exists()
    assert ("bertfeat convert MODEL" if name.endswith(".bin") else "not a whole safetensors file") in message


ODD = [None, True, -1, 10**30, "", "\x00", "\ud800", [], {}, {"a": 1}]


def with_odd_values(content: Any) -> Iterator[Any]:
    """Yield copies of a JSON value in which one part is replaced."""
    yield from ODD
    for key in range(len(content)) if isinstance(content, list) else content if isinstance(content, dict) else ():
        for value in with_odd_values(content[key]):
            changed = content.copy()
            changed[key] = value
            yield changed


@pytest.mark.parametrize(
    "file", ["modules.json", TRANSFORMER, "config_sentence_transformers.json", "tokenizer_config.json", POOLING, LAYER]
)
def test_any_odd_value_is_read_or_refused_in_one_line(hostile: Path, file: str) -> None:
    content = json.loads((hostile / file).read_text())
    messages = []
    for changed in with_odd_values(content):
        (hostile / file).write_text(json.dumps(changed))
        for reading in (lambda: read_sentence_model(hostile, HIDDEN), lambda: read_prompts(hostile)):
            try:
                reading()
            except CheckpointError as error:
                messages.append(str(error))
    assert messages
    assert all(message.isprintable() for message in messages)
