"""Hidden states equal plain transformers, one text at a time: every tiny model, and configs that differ."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.loading import load_encoder
from bertfeat.errors import CheckpointError, ConfigError
from bertfeat.records import Pack
from tests.support.families import (
    HIDDEN,
    MAX_LENGTH,
    N_LAYERS,
    all_model_types,
    build_model,
    has_pooler,
    is_decoder,
    random_pack,
    reference_encoder,
    reference_states,
    windows_of,
)

ALL_LAYERS = range(N_LAYERS + 1)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.5], "long_factor": [2.0, 3.0, 4.0, 8.0]}
# transformers cannot run them in bfloat16.
NO_HALF = ("xlnet", "deberta", "fnet")
LINEAR_ROPE = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
RELATIVE = ("xlnet", "t5", "mt5", "umt5", "longt5", "switch_transformers")
# The others run without padding. These have attention of their own, sinks, chunks or windows that only a mask knows,
# relative positions, convolutions, or embeddings that look at other tokens of the text.
NOT_PACKED = (
    "esm luke xlm flaubert ibert squeezebert mobilebert xlnet deberta deberta-v2 mpnet megatron-bert roformer rembert "
    "longformer big_bird convbert layoutlm nystromformer t5 mt5 umt5 longt5 bart mbart m2m_100 openai-gpt bloom "
    "falcon clip_text_model metaclip_2_text_model clipseg_text_model owlvit_text_model owlv2_text_model "
    "xclip_text_model groupvit_text_model siglip_text_model siglip2_text_model tipsv2_text_model flava_text_model "
    "visual_bert blip_text_model pegasus blenderbot blenderbot-small marian plbart mvp led bigbird_pegasus nllb-moe "
    "switch_transformers lilt layoutlmv3 markuplm fnet yoso openai_privacy_filter gptj codegen gpt_neo xglm mpt "
    "qwen2_moe phimoe gpt_oss llama4_text flint mimo_v2_flash"
)


pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Built on demand by `checkpoint_of`, once a family."""
    return {"": tmp_path_factory.mktemp("families")}


def checkpoint_of(folders: dict[str, Path], model_type: str) -> Checkpoint:
    if model_type not in folders:
        folders[model_type] = build_model(model_type, folders[""] / model_type)
    return open_checkpoint(str(folders[model_type]))


@pytest.fixture(scope="module")
def whole(folders: dict[str, Path]) -> Callable[[str], PackEncoder]:
    """Return the encoder of a family with all its layers, loaded once."""
    return functools.cache(lambda model_type: load_encoder(checkpoint_of(folders, model_type), ALL_LAYERS))


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    difference = found - expected
    assert difference.abs().max() <= 1e-4, what
    assert difference.norm() <= 1e-5 * expected.norm(), what


def assert_equal_layers(encoder: PackEncoder, pack: Pack, expected: list[torch.Tensor]) -> None:
    states = encoder.encode(pack)
    for layer in encoder.layers:
        assert states.layer(layer).shape == expected[layer].shape
        assert_close(states.layer(layer), expected[layer], f"layer {layer}")


@pytest.mark.promise("compared")
@pytest.mark.parametrize(
    ("lengths", "cuts"),
    [
        pytest.param([MAX_LENGTH, 13, 13, 2, 1], ([1, 3],), id="few"),
        pytest.param(
            [*range(1, MAX_LENGTH + 1), 7, 7, 7, 1, 1, MAX_LENGTH],
            ([0], [2], [1, 3]),
            id="every length",
            marks=pytest.mark.long,
        ),
    ],
)
@pytest.mark.parametrize("model_type", all_model_types())
def test_layers_equal_transformers(
    folders: dict[str, Path],
    whole: Callable[[str], PackEncoder],
    model_type: str,
    lengths: list[int],
    cuts: tuple[list[int], ...],
) -> None:
    """In a pack of many windows and in a pack of one, from the whole model and from one that is cut."""
    checkpoint = checkpoint_of(folders, model_type)
    assert (checkpoint.n_layers, checkpoint.hidden_size) == (N_LAYERS, HIDDEN if model_type != "lilt" else 48)
    unlimited = {**dict.fromkeys(RELATIVE, 512), "bloom": 2_048}
    assert checkpoint.max_length == unlimited.get(model_type, MAX_LENGTH)
    encoder = whole(model_type)
    path = "equal-length" if model_type in NOT_PACKED.split() else "packed"
    assert encoder.path == path, "another transformers or processor may choose the other way; see constraints.txt"
    pack = random_pack(lengths)
    expected = reference_states(reference_encoder(checkpoint.folder), pack, type_ids=encoder.supports_type_ids)
    assert len(expected) == N_LAYERS + 1
    assert_equal_layers(encoder, pack, expected)
    for window in {0, len(lengths) // 2}:
        assert_equal_layers(encoder, *alone(pack, window, expected))
    for layers in cuts:
        cut = load_encoder(checkpoint, layers)
        assert cut.n_blocks == max(1, *layers)
        assert_equal_layers(cut, pack, expected)
        # The blocks of XLM are in parts.
        assert n_calls(cut, pack) < n_calls(encoder, pack) or model_type in ("xlm", "flaubert")


def n_calls(encoder: PackEncoder, pack: Pack) -> int:
    """Return how many modules of the model run."""
    calls: list[torch.nn.Module] = []
    with register_module_forward_pre_hook(lambda module, _: calls.append(module)):
        encoder.encode(pack)
    return len(calls)


def alone(pack: Pack, index: int, states: list[torch.Tensor]) -> tuple[Pack, list[torch.Tensor]]:
    """Return the pack of a single window, and its states."""
    window = windows_of(pack)[index]
    tokens = {name: getattr(pack, name)[window] for name in ("input_ids", "position_ids", "type_ids")}
    one = Pack(**tokens, lengths=pack.lengths[[index]], windows=pack.windows[[index]])
    return one, [state[window] for state in states]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", NO_HALF)
def test_half_precision_works_where_transformers_has_none(
    folders: dict[str, Path], whole: Callable[[str], PackEncoder], model_type: str, dtype: torch.dtype
) -> None:
    encoder = load_encoder(checkpoint_of(folders, model_type), ALL_LAYERS, compute_dtype=dtype)
    pack = random_pack([MAX_LENGTH, 13, 13, 1])
    exact, found = whole(model_type).encode(pack), encoder.encode(pack)
    for layer in ALL_LAYERS:
        assert found.layer(layer).dtype is dtype
        assert cosines(found.layer(layer), exact.layer(layer)).min() > 0.99


HALVED = [found for found in all_model_types(is_decoder, others_long=True) if found.values[0] not in NO_HALF]


@pytest.mark.promise("equal")
@pytest.mark.parametrize("model_type", HALVED)
def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(
    folders: dict[str, Path], whole: Callable[[str], PackEncoder], model_type: str
) -> None:
    """The wide random weights amplify every rounding: no fixed cosine holds for all families and processors."""
    checkpoint = checkpoint_of(folders, model_type)
    encoder = load_encoder(checkpoint, ALL_LAYERS, compute_dtype=torch.bfloat16)
    pack = random_pack([MAX_LENGTH, 13, 13, 1])
    if any("expert" in key for key in checkpoint.config):
        # Rounding may choose other experts for a token. The comparison at load has passed.
        states = encoder.encode(pack)
        assert all(states.layer(layer).isfinite().all() for layer in ALL_LAYERS)
        return
    reference = reference_encoder(checkpoint.folder, dtype=torch.bfloat16)
    half = reference_states(reference, pack, type_ids=encoder.supports_type_ids)
    exact = list(whole(model_type).encode(pack).states.values())
    runs = [(pack, exact, half), (*alone(pack, 1, exact), alone(pack, 1, half)[1])]
    for part, wanted, theirs in runs:
        states = encoder.encode(part)
        for layer in ALL_LAYERS:
            assert states.layer(layer).dtype is torch.bfloat16
            found, other = (cosines(state, wanted[layer]).min() for state in (states.layer(layer), theirs[layer]))
            assert 1 - found <= 2 * (1 - other) + 5e-4, f"layer {layer}"


def cosines(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cosine_similarity(found.float(), expected.float(), dim=1)


@pytest.mark.parametrize("model_type", all_model_types(has_pooler))
def test_pooler_equals_transformers(folders: dict[str, Path], model_type: str) -> None:
    checkpoint = checkpoint_of(folders, model_type)
    if model_type == "roberta":
        # Saved from a masked language model, like the published RoBERTa: it has no trained pooler.
        with pytest.raises(CheckpointError, match="no trained pooler"):
            load_encoder(checkpoint, [1], with_pooler=True)
        return
    encoder = load_encoder(checkpoint, [1], with_pooler=True)
    pack = random_pack([20, 9, 9, 4], seed=4)
    pooled = encoder.encode(pack).pooler()
    reference = reference_encoder(checkpoint.folder)
    for index, window in enumerate(windows_of(pack)):
        inputs = {"input_ids": torch.from_numpy(pack.input_ids[window])[None]}
        if encoder.supports_type_ids:
            inputs["token_type_ids"] = torch.from_numpy(pack.type_ids[window])[None]
        with torch.inference_mode():
            assert_close(pooled[index], reference(**inputs).pooler_output[0], f"window {index}")


def test_pooler_is_refused_where_there_is_none(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="has no pooler; use mean, max or cls"):
        load_encoder(checkpoint_of(folders, "distilbert"), [1], with_pooler=True)


@pytest.mark.parametrize(
    ("model_type", "token"),
    # The padding token has a position of its own in most of these; ESM drops its mask token, 7, and rescales the text.
    [("roberta", 1), ("luke", 1), ("xmod", 1), ("xlm", 2), ("esm", 1), ("esm", 7)],
)
def test_padding_and_mask_tokens_in_the_text(
    folders: dict[str, Path], whole: Callable[[str], PackEncoder], model_type: str, token: int
) -> None:
    checkpoint, encoder = checkpoint_of(folders, model_type), whole(model_type)
    pack = random_pack([12, 8, 8, 3], seed=6)
    pack.input_ids[[3, 4, 13, 30]] = token
    expected = reference_states(reference_encoder(checkpoint.folder), pack, type_ids=False)
    assert_equal_layers(encoder, pack, expected)


@pytest.mark.parametrize(
    ("model_type", "changes", "layers"),
    [
        # A decoder stays causal, and ALBERT with several groups of blocks is not cut.
        ("bert", {"is_decoder": True}, ALL_LAYERS),
        ("albert", {"num_hidden_groups": 2}, [1, 2]),
        ("gte", {"type_vocab_size": 2, "rope_parameters": LINEAR_ROPE}, ALL_LAYERS),
        ("jina_embeddings_v3", {"rope_parameters": LINEAR_ROPE}, ALL_LAYERS),
        ("esm", {"position_embedding_type": "rotary", "emb_layer_norm_before": True}, ALL_LAYERS),
        ("xlm", {"causal": True, "use_lang_emb": False}, ALL_LAYERS),
        ("flaubert", {"sinusoidal_embeddings": True, "layerdrop": 0.5}, ALL_LAYERS),
        ("xmod", {"pre_norm": True, "adapter_layer_norm": True}, [1, 2]),
        ("longt5", {"encoder_attention_type": "transient-global", "global_block_size": 4}, ALL_LAYERS),
        ("llama", {"rope_parameters": LLAMA3_ROPE, "attention_bias": True}, ALL_LAYERS),
        ("mistral", {"sliding_window": None, "head_dim": 16}, ALL_LAYERS),
        ("qwen2", {"use_sliding_window": False, "layer_types": None}, [1, 2]),
        ("gemma3_text", {"use_bidirectional_attention": True}, ALL_LAYERS),
        ("gpt_neox", {"use_parallel_residual": False}, ALL_LAYERS),
        ("opt", {"do_layer_norm_before": False}, [1, 2]),
        ("opt", {"_remove_final_layer_norm": True}, [1, 2]),
        ("phi3", {"original_max_position_embeddings": 12, "rope_parameters": LONG_ROPE}, ALL_LAYERS),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 2, "layer_types": None}, [1, 3]),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, ALL_LAYERS),
        ("falcon", {"alibi": True}, ALL_LAYERS),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, [1, 2]),
    ],
)
def test_other_configs_equal_transformers(
    tmp_path: Path, model_type: str, changes: dict[str, object], layers: Sequence[int]
) -> None:
    checkpoint = open_checkpoint(str(build_model(model_type, tmp_path / model_type, **changes)))
    pack = random_pack([12, 12, 5], seed=7)
    encoder = load_encoder(checkpoint, layers)
    reference = reference_encoder(checkpoint.folder)
    assert_equal_layers(encoder, pack, reference_states(reference, pack, type_ids=encoder.supports_type_ids))


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("bert", {"model_type": "no_such"}, r"transformers [0-9.]+ has no model type 'no_such'"),
        ("bert", {"model_type": "vit"}, "'vit' is not a model of text"),
        ("bert", {"model_type": "mra"}, "'mra' is not run: its attention gives zeros without CUDA kernels"),
        ("bert", {"model_type": "clip"}, "besides text; save its text model alone, of the type 'clip_text_model'"),
        ("bert", {"model_type": "llava", "text_config": {"model_type": "qwen2"}}, "alone, of the type 'qwen2'"),
        ("longt5", {"local_radius": 10**9}, "local_radius is 1000000000; expected at most"),
        ("mixtral", {"num_local_experts": 10**9}, "num_local_experts is 1000000000; expected at most"),
        ("xlm", {"emb_dim": "x"}, "does not fit its family: .*emb_dim"),
        ("xlm", {"n_words": 10**6}, "asks for [0-9]+ weights, the files hold"),
        ("esm", {"num_attention_heads": 5}, "config.json: it does not fit its family"),
        ("gte", {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters has the type longrope"),
        ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings is 2; expected a whole number from 3"),
        ("xmod", {"default_language": "fr_XX"}, "transformers cannot run the model: .*'fr_XX'"),
        ("esm", {"mask_token_id": None}, "transformers cannot run the model"),
        ("m2m_100", {"activation_dropout": -1.0}, "transformers cannot run the model: .*dropout"),
    ],
)
def test_models_that_cannot_be_run_are_refused(
    folders: dict[str, Path], tmp_path: Path, model_type: str, changes: dict[str, object], reason: str
) -> None:
    folder = changed(checkpoint_of(folders, model_type).folder, tmp_path, changes)
    with pytest.raises(CheckpointError, match=reason):
        load_encoder(open_checkpoint(str(folder)), [N_LAYERS])


def changed(folder: Path, tmp_path: Path, changes: dict[str, object]) -> Path:
    """Copy a model folder with other values in its config.json."""
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    return copy
