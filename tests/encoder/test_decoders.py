"""Decoders: the type of their weights, windows, and the memory that a part of one takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import bertfeat
from bertfeat.config import ExtractConfig
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import ConfigError
from bertfeat.extraction.flow import Flow
from tests.support.families import SENTENCES, build_model
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

CORPUS = ROOT / "examples" / "data" / "peps.txt"


WIDTH, INNER = 512, 1376
BLOCK_VALUES = 4 * WIDTH * WIDTH + 3 * WIDTH * INNER


def write_decoder(folder: Path, n_blocks: int) -> Path:
    """Write a model like Llama whose weights are bfloat16; a block takes 6 MB."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": 8, "num_key_value_heads": 8}
    build_model("llama", folder, num_hidden_layers=n_blocks, max_position_embeddings=131_072, **sizes)
    weights = load_file(folder / "model.safetensors")
    halves = {name: values.bfloat16() for name, values in weights.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder") / "model", 2)


def test_weights_in_bfloat16_stay_in_bfloat16(in_bfloat16: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES[:2]), encoding="utf-8")
    assert open_checkpoint(str(in_bfloat16)).is_bfloat16
    stores = {
        choice: bertfeat.extract(
            texts, tmp_path / choice, model=str(in_bfloat16), layers="-1", device="cpu", compute_dtype=choice
        )
        for choice in ("auto", "bfloat16", "float32")
    }
    vectors = {choice: store.numpy("token", "layer_02") for choice, store in stores.items()}
    assert stores["auto"].plan.plan_hash == stores["bfloat16"].plan.plan_hash != stores["float32"].plan.plan_hash
    assert np.array_equal(vectors["auto"], vectors["bfloat16"])
    assert not np.array_equal(vectors["auto"], vectors["float32"])


@pytest.mark.parametrize(("given", "length"), [(None, 8_192), (20_000, 20_000), (64, 64)])
def test_windows_are_shorter_than_the_limit_unless_asked_otherwise(
    in_bfloat16: Path, given: int | None, length: int
) -> None:
    assert window_of(in_bfloat16, given) == length
    with pytest.raises(ConfigError, match=r"131073` is more than .* takes, which is 131072"):
        window_of(in_bfloat16, 131_073)


def window_of(model: Path, max_length: int | None) -> int:
    settings = {"model": str(model), "levels": "sentence", "layers": "-1", "max_length": max_length}
    return Flow.of(ExtractConfig.of(None, settings)).resolved.limits.max_length


# Prints the peak memory of an extraction in MB; on Linux, `getrusage` counts the parent too.
MEASURE = """
import re, resource, sys
from pathlib import Path
import bertfeat
texts, output, model, layers, compute_dtype = sys.argv[1:]
settings = {"model": model, "layers": layers, "compute_dtype": compute_dtype, "device": "cpu"}
bertfeat.extract(texts, output, limit=20, levels="sentence", pooling="lasttoken", progress=False, **settings)
status = Path("/proc/self/status")
if status.exists():
    print(int(re.search("VmHWM:[^0-9]*([0-9]+)", status.read_text())[1]) / 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)
"""


@pytest.mark.promise("equal")
@pytest.mark.long
def test_memory_does_not_depend_on_the_blocks_above(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does a whole model in bfloat16 take more than its file."""
    folders = {n_blocks: write_decoder(tmp_path / f"deep{n_blocks}", n_blocks) for n_blocks in (8, 24)}
    block_mb = BLOCK_VALUES * 2 / 2**20

    def peak(n_blocks: int, layers: str, compute_dtype: str) -> float:
        output = tmp_path / f"{n_blocks}{layers}{compute_dtype}"
        command = [sys.executable, "-c", MEASURE, str(CORPUS), str(output), str(folders[n_blocks]), layers]
        done = subprocess.run([*command, compute_dtype], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        return float(done.stdout)

    runs = [(8, "6", "auto"), (24, "6", "auto"), (24, "-1", "auto"), (8, "6", "float32"), (24, "6", "float32")]
    peaks = {run: peak(*run) for run in runs}
    with capsys.disabled():
        print(f"\nMB at the peak (blocks, layer, type): {peaks}; a block in bfloat16 takes {block_mb:.1f}")
    for compute_dtype in ("auto", "float32"):
        more = peaks[24, "6", compute_dtype] - peaks[8, "6", compute_dtype]
        # The 16 blocks that are not needed would take 100 MB, in float32 twice as much.
        assert more < 8 * block_mb, compute_dtype
    assert 18 * block_mb / 2 < peaks[24, "-1", "auto"] - peaks[24, "6", "auto"] < 1.3 * 18 * block_mb
