"""Half-precision compute on the trained model: how far it may be from float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.loading import load_encoder
from bertfeat.records import Document
from bertfeat.text.packing import pack_windows
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import cut_windows
from tests.support.places import ROOT

pytestmark = pytest.mark.numeric

TEXTS = (ROOT / "examples" / "data" / "peps.txt").read_text(encoding="utf-8").splitlines()[:12]


def last_layer(dtype: torch.dtype) -> np.ndarray:
    checkpoint = open_checkpoint("minilm")
    tokenizer = Tokenizer.load(checkpoint.folder)
    documents = [Document(index=i, doc_id=i, text=text) for i, text in enumerate(TEXTS)]
    windows = cut_windows(tokenizer.encode(documents), tokenizer, WindowLimits(512, 128), documents)
    encoder = load_encoder(checkpoint, [6], compute_dtype=dtype)
    states = [encoder.encode(pack).layer(6) for pack in pack_windows(windows, 2048)]
    assert all(state.dtype is dtype for state in states)
    return torch.cat(states).float().numpy()


@pytest.mark.parametrize(("dtype", "least"), [(torch.bfloat16, 0.9995), (torch.float16, 0.99999)])
def test_last_layer_in_half_precision(dtype: torch.dtype, least: float) -> None:
    exact, found = last_layer(torch.float32), last_layer(dtype)
    cosine = (exact * found).sum(axis=1) / (np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1))
    assert cosine.min() >= least
    assert not np.array_equal(exact, found)
