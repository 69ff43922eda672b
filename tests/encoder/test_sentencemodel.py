"""A model's own sentence embedding: read as sentence-transformers reads it, computed as it computes it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
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
from tests.support.sentence_models import MODES, respell, save_sentence_model

TANH, IDENTITY = torch.nn.Tanh(), torch.nn.Identity()


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


@pytest.mark.parametrize("modes", [*((mode,) for mode in MODES), ("cls", "mean"), ("mean", "cls"), MODES])
def test_modes_are_read_in_the_order_in_which_they_are_joined(
    good: Path, tmp_path: Path, modes: tuple[str, ...]
) -> None:
    folder = save_sentence_model(good, tmp_path / "new", modes=modes, include_prompt=False, max_length=17)
    found = read(folder)
    assert (found.modes, found.include_prompt, found.max_length) == (modes, False, 17)
    assert found.dim(HIDDEN) == len(modes) * HIDDEN
    respell(folder, max_length=12)
    old = read(folder)
    oracle = SentenceTransformer(str(folder), device="cpu")
    pooled = oracle[1].pooling_mode
    assert old.modes == ((pooled,) if isinstance(pooled, str) else pooled)
    assert (old.include_prompt, old.max_length) == (True, 12) == (oracle[1].include_prompt, oracle.max_seq_length)


def test_both_spellings_of_one_embedding_have_one_digest(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "old"))
    respell(folder, max_length=5)
    assert read(folder).sha256 == read(saved).sha256
    assert (read(folder).max_length, read(saved).max_length) == (5, 30)


def test_the_length_is_that_of_sentence_transformers(saved: Path, hostile: Path) -> None:
    for limit, said in ((9, 12), (None, 12), (None, 10**30)):
        change(hostile / "tokenizer_config.json", model_max_length=said)
        (hostile / "sentence_bert_config.json").write_text(
            json.dumps({"max_seq_length": limit, "do_lower_case": False})
        )
        checkpoint = open_checkpoint(str(hostile))
        length = min(read(hostile).max_length or checkpoint.max_length, checkpoint.max_length)
        assert length == SentenceTransformer(str(hostile), device="cpu").max_seq_length
    (hostile / "sentence_bert_config.json").rename(hostile / "sentence_roberta_config.json")
    change(hostile / "sentence_roberta_config.json", max_seq_length=11)
    assert read(hostile).max_length == 11 == SentenceTransformer(str(hostile), device="cpu").max_seq_length


def test_every_decision_changes_the_digest(good: Path, saved: Path, hostile: Path, tmp_path: Path) -> None:
    digests = {read(saved).sha256}
    weights = hostile / "2_Dense" / "model.safetensors"
    for file, changes in (
        ("1_Pooling", {"pooling_mode": ["mean", "cls"]}),
        ("1_Pooling", {"include_prompt": False}),
        ("2_Dense", {"activation_function": "torch.nn.modules.activation.ReLU"}),
        ("2_Dense", {"activation_function": "torch.nn.modules.linear.Identity"}),
    ):
        change(hostile / file / "config.json", **changes)
        digests.add(read(hostile).sha256)
    save_file({name: array + 1 for name, array in load_file(weights).items()}, weights)
    digests.add(read(hostile).sha256)
    modules = json.loads((hostile / "modules.json").read_text())
    (hostile / "modules.json").write_text(json.dumps(modules[:3]))
    digests.add(read(hostile).sha256)
    assert len(digests) == 7


@pytest.mark.parametrize(
    ("dense", "normalize"),
    [
        ([{"out_features": 8, "activation_function": TANH}], True),
        ([{"out_features": 48, "activation_function": IDENTITY, "bias": False}, {"out_features": 5}], False),
        ([{"out_features": 8, "activation_function": torch.nn.GELU(), "use_residual": True}], False),
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
        for module in list(SentenceTransformer(str(folder), device="cpu"))[2:]:
            features = module(features)
    apply = load_steps(found, "cpu")
    out = apply(vectors)
    assert out.dtype == torch.float32
    assert out.shape == (7, found.dim(HIDDEN))
    assert (out - features["sentence_embedding"]).abs().max() < 1e-6
    alone = torch.cat([apply(row[None]) for row in vectors])
    torch.testing.assert_close(alone, out, rtol=2e-7, atol=0)
    assert apply(vectors[:0]).shape == (0, found.dim(HIDDEN))


def test_every_activation_is_that_of_torch(saved: Path, hostile: Path) -> None:
    vectors = torch.linspace(-3, 3, 2 * 2 * HIDDEN).reshape(2, -1)
    for name in ACTIVATIONS:
        change(hostile / "2_Dense" / "config.json", activation_function=f"torch.nn.{name}")
        features = SentenceTransformer(str(hostile), device="cpu")[2]({"sentence_embedding": vectors})
        out = load_steps(read(hostile))(vectors)
        expected = torch.nn.functional.normalize(features["sentence_embedding"])
        assert (out - expected).abs().max() < 1e-6, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_float_type_are_used_as_float32(hostile: Path, dtype: torch.dtype) -> None:
    path = hostile / "2_Dense" / "model.safetensors"
    save_file({name: array.to(dtype) for name, array in load_file(path).items()}, path)
    vectors = torch.randn(3, 2 * HIDDEN, generator=torch.Generator().manual_seed(1))
    oracle = SentenceTransformer(str(hostile), device="cpu")
    expected = oracle[3](oracle[2]({"sentence_embedding": vectors}))["sentence_embedding"]
    assert (load_steps(read(hostile))(vectors) - expected).abs().max() < 1e-6


def test_weights_that_change_between_reading_and_loading_are_refused(hostile: Path) -> None:
    found = read(hostile)
    path = hostile / "2_Dense" / "model.safetensors"
    save_file({name: array + 1 for name, array in load_file(path).items()}, path)
    with pytest.raises(CheckpointError, match="changed since they were checked"):
        load_steps(found)


def test_files_may_be_links_into_the_cache_of_the_hub(saved: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("a" * 40)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(file for file in sorted(saved.rglob("*")) if file.is_file()):
        shutil.copy(file, blobs / str(number))
        link = snapshot / file.relative_to(saved)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    assert read(snapshot).sha256 == read(saved).sha256
    assert open_checkpoint(str(snapshot)).prompts().query == "q: "


def test_prompts_follow_the_rules_of_encode_query_and_encode_document(saved: Path) -> None:
    prompts = open_checkpoint(str(saved)).prompts()
    assert (prompts.query, prompts.document, prompts.default_name) == ("q: ", "p: ", None)
    assert prompts.text_of("passage") == "p: "
    with pytest.raises(ConfigError, match=r"`prompt_name` 'no': .*; choose one of document, passage, query$"):
        prompts.text_of("no")
    with pytest.raises(ConfigError, match="pass its text with `prompt`"):
        Prompts().text_of("query")
    assert (Prompts({"corpus": "c"}).document, Prompts({"document": "d", "passage": "p"}).document) == ("c", "d")
    assert (Prompts({"passage": "p"}).query, Prompts().document) == (None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": ["q"]},
        {"prompts": {"query": 1}},
        {"prompts": {"query": "\ud800"}},
        {"default_prompt_name": "other"},
        {"default_prompt_name": ["query"]},
    ],
)
def test_prompts_that_are_refused(hostile: Path, changes: dict[str, Any]) -> None:
    change(hostile / "config_sentence_transformers.json", **changes)
    with pytest.raises(CheckpointError, match=r"config_sentence_transformers\.json: .*; correct the file$") as caught:
        open_checkpoint(str(hostile)).prompts()
    assert str(caught.value).isprintable()


def test_null_prompts_are_empty_as_in_sentence_transformers(hostile: Path) -> None:
    path = hostile / "config_sentence_transformers.json"
    change(path, prompts={"query": None, "a": "b"}, default_prompt_name="document")
    assert open_checkpoint(str(hostile)).prompts() == Prompts({"query": "", "a": "b"})
    change(path, default_prompt_name="a")
    assert open_checkpoint(str(hostile)).prompts().default_name == "a"
    assert SentenceTransformer(str(hostile), device="cpu").prompts == {"query": "", "document": "", "a": "b"}


@pytest.mark.parametrize("place", ["../2_Dense", "/etc", "2_Dense/../../x", "a\\b", "C:x", "2_\nDense", "..", "x\0y"])
def test_module_paths_stay_inside(hostile: Path, place: str) -> None:
    shutil.copytree(hostile / "2_Dense", hostile.parent / "2_Dense")
    change_module(hostile, 2, path=place)
    with pytest.raises(CheckpointError, match=r"leads out of the model folder|the file is missing") as caught:
        read_sentence_model(hostile, HIDDEN)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("file", ["modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"])
def test_links_that_lead_out(hostile: Path, tmp_path: Path, file: str) -> None:
    (hostile / file).rename(tmp_path / "elsewhere")
    (hostile / file).symlink_to(tmp_path / "elsewhere")
    assert "leads out of the model folder" in refusal(hostile)


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "custom_st.Transformer", "sentence_transformers.models.CNN", "pylate.models.Dense.Dense"),
        *("sentence_transformers.base.modules.router.Router", "Pooling", "", "\n" * 99),
    ],
)
def test_unknown_module_types(hostile: Path, name: str) -> None:
    change_module(hostile, 2, type=name)
    message = refusal(hostile)
    assert f"module type {name!r:.80} is not supported" in message
    assert "`pooling` mean, max and cls" in message


@pytest.mark.parametrize(
    ("number", "changes", "reason"),
    [
        (0, {"path": "0_Transformer"}, "the Transformer lies in the folder '0_Transformer'"),
        (2, {"type": "sentence_transformers.models.Pooling"}, "not one Transformer, one Pooling"),
        (1, {"type": "sentence_transformers.models.Normalize"}, "not one Transformer, one Pooling"),
        (3, {"type": "sentence_transformers.models.Transformer"}, "not one Transformer, one Pooling"),
        (1, {"path": "4_Pooling"}, "4_Pooling/config.json: the file is missing"),
        (1, {"path": ""}, "unknown field"),
        (2, {"path": "3_Normalize"}, "missing required field `in_features`"),
    ],
)
def test_orders_that_are_refused(hostile: Path, number: int, changes: dict[str, Any], reason: str) -> None:
    change_module(hostile, number, **changes)
    assert reason in refusal(hostile)


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("1_Pooling", {"embedding_dimension": 33}, "pools vectors of 33 values, and the model's have 32"),
        ("1_Pooling", {"embedding_dimension": True}, "got `bool` - at `$.embedding_dimension`"),
        ("1_Pooling", {"pooling_mode": "median"}, "Invalid enum value 'median' - at `$.pooling_mode`"),
        ("1_Pooling", {"pooling_mode": []}, "at `$.pooling_mode`"),
        ("1_Pooling", {"pooling_mode": ["mean"] * 10**6}, "at `$.pooling_mode`"),
        ("1_Pooling", {"include_prompt": "no"}, "Expected `bool`, got `str` - at `$.include_prompt`"),
        ("1_Pooling", {"temperature": 2}, "unknown field `temperature`"),
        ("2_Dense", {"in_features": 32}, "does not fit vectors of 64"),
        ("2_Dense", {"out_features": 10**12}, "at `$.out_features`"),
        ("2_Dense", {"out_features": 0}, "at `$.out_features`"),
        ("2_Dense", {"out_features": 9}, "not {'linear.weight': (9, 64), 'linear.bias': (9,)}"),
        ("2_Dense", {"bias": False}, "holds {'linear.bias': (8,), 'linear.weight'"),
        ("2_Dense", {"use_residual": True}, "'residual.weight': (8, 64)"),
        ("2_Dense", {"activation_function": "os.system"}, "activation_function is 'os.system'"),
        ("2_Dense", {"activation_function": "torch.nn.Softmax"}, "activation_function is 'torch.nn.Softmax'"),
        ("2_Dense", {"activation_function": "torch.hub.load"}, "activation_function is 'torch.hub.load'"),
        ("2_Dense", {"activation_function": None}, "got `null` - at `$.activation_function`"),
        ("2_Dense", {"module_input_name": "token_embeddings"}, "'token_embeddings' - at `$.module_input_name`"),
        ("2_Dense", {"module_output_name": "other"}, "'other' - at `$.module_output_name`"),
        ("3_Normalize", {"module_input_name": "token_embeddings"}, "'token_embeddings' - at `$.module_input_name`"),
    ],
)
def test_settings_that_are_refused(hostile: Path, file: str, changes: dict[str, Any], reason: str) -> None:
    change(hostile / file / "config.json", **changes)
    assert reason in refusal(hostile)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_seq_length": 0}, "at `$.max_seq_length`"),
        ({"max_seq_length": 10**12}, "at `$.max_seq_length`"),
        ({"max_seq_length": True}, "at `$.max_seq_length`"),
        ({"transformer_task": "fill-mask"}, "'fill-mask' - at `$.transformer_task`"),
        ({"modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}}, "at `$.modality_config"),
        ({"modality_config": {"image": {}}}, "in `$.modality_config`"),
        ({"config_args": {"num_hidden_layers": 1}}, "in `$.config_args`"),
        ({"do_lower_case": True}, "do_lower_case is true, but the model's tokenizer keeps capitals"),
        ({"query_length": 32}, "unknown field `query_length`"),
        ({"evil": 1}, "unknown field `evil`"),
    ],
)
def test_settings_of_the_transformer_that_are_refused(hostile: Path, changes: dict[str, Any], reason: str) -> None:
    change(hostile / "tokenizer.json", normalizer=None)
    change(hostile / "sentence_bert_config.json", **changes)
    assert reason in refusal(hostile)


def test_lower_case_is_accepted_where_the_tokenizer_does_it(hostile: Path) -> None:
    change(hostile / "sentence_bert_config.json", do_lower_case=True, model_args={"attn_implementation": "sdpa"})
    change(hostile / "tokenizer.json", normalizer={"type": "BertNormalizer", "lowercase": True})
    assert read(hostile).max_length == 30
    change(hostile / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})
    assert read(hostile).max_length == 30


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_dense_weights_in_a_pickle_are_never_opened(hostile: Path, tmp_path: Path, name: str) -> None:
    (hostile / "2_Dense" / "model.safetensors").unlink()
    torch.save({"linear.weight": Payload(tmp_path / "canary")}, hostile / "2_Dense" / name)
    message = refusal(hostile)
    assert not (tmp_path / "canary").exists()
    assert ("bertfeat convert MODEL" if name.endswith(".bin") else "not a whole safetensors file") in message


ODD = [None, True, -1, 1.5, 10**30, "", "\x00", "\ud800", [], [[]], {}, {"a": 1}]
FILES = [
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json"),
    *("1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json"),
]


def _with_odd_values(content: Any) -> Iterator[Any]:
    """Yield copies of a JSON value in which one part is replaced."""
    yield from ODD
    for key in range(len(content)) if isinstance(content, list) else content if isinstance(content, dict) else ():
        for value in _with_odd_values(content[key]):
            changed = content.copy()
            changed[key] = value
            yield changed


@pytest.mark.parametrize("file", FILES)
def test_any_odd_value_is_read_or_refused_in_one_line(hostile: Path, file: str) -> None:
    content = json.loads((hostile / file).read_text())
    messages = []
    for changed in _with_odd_values(content):
        (hostile / file).write_text(json.dumps(changed))
        for reading in (lambda: read_sentence_model(hostile, HIDDEN), lambda: read_prompts(hostile)):
            try:
                reading()
            except CheckpointError as error:
                messages.append(str(error))
    assert messages
    assert all(message.isprintable() for message in messages)


def test_a_transformer_one_folder_deeper_says_what_to_do(hostile: Path) -> None:
    (hostile / "config.json").rename(hostile / "1_Pooling" / "moved.json")
    with pytest.raises(CheckpointError, match=r"no config.json in it; .*save_pretrained\('NEW'\)"):
        open_checkpoint(str(hostile))
