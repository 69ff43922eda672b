"""The oracle: plain `transformers`, one window at a time; it shares only the model folder with bertfeat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

Array = npt.NDArray[np.float32]


class Oracle:
    """All hidden states of a text, from a model run in the plainest way."""

    def __init__(self, folder: Path | str, **tokenizer_settings: object) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder), **tokenizer_settings)
        self.model = AutoModel.from_pretrained(str(folder), dtype=torch.float32).eval()

    @torch.no_grad()
    def states(self, input_ids: Sequence[int], type_ids: Sequence[int] | None = None) -> Array:
        """Return float32 (n_layers + 1, n_tokens, hidden) of one window of ids, special tokens included."""
        inputs = {"input_ids": torch.tensor([list(input_ids)])}
        if type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([list(type_ids)])
        output = self.model(**inputs, output_hidden_states=True)
        return torch.stack([state[0] for state in output.hidden_states]).numpy()

    def document(self, text: str, max_length: int, stride: int) -> tuple[list[int], Array]:
        """Return the ids and the states of a text, special tokens included, each token from its best window.

        The windows are those of `return_overflowing_tokens`. The best window of a token is the one with the largest
        minimum of left and right context, the first on a tie; a side that reaches the end of the text does not count.
        """
        windows = self.tokenizer(
            text,
            truncation=True,
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_special_tokens_mask=True,
        )
        full = self.tokenizer(text, return_special_tokens_mask=True)
        n_prefix = full["special_tokens_mask"].index(0) if 0 in full["special_tokens_mask"] else 1
        n_text = full["special_tokens_mask"].count(0)
        n_special = len(full["input_ids"]) - n_text
        step = max_length - n_special - stride
        states = [self.states(ids) for ids in windows["input_ids"]]
        best: list[tuple[float, int, int]] = [(-1.0, 0, 0)] * n_text
        for number, ids in enumerate(windows["input_ids"]):
            length = len(ids) - n_special
            for place in range(length):
                token = number * step + place
                left = np.inf if number == 0 else place
                right = np.inf if number == len(states) - 1 else length - 1 - place
                if min(left, right) > best[token][0]:
                    best[token] = (min(left, right), number, place + n_prefix)
        rows = [states[0][:, i] for i in range(n_prefix)]
        rows += [states[number][:, place] for _, number, place in best]
        rows += [
            states[-1][:, len(windows["input_ids"][-1]) - n_special + n_prefix + i] for i in range(n_special - n_prefix)
        ]
        return full["input_ids"], np.stack(rows, axis=1)


def assert_close(
    found: npt.NDArray[np.floating], expected: npt.NDArray[np.floating], *, stored: str = "float32"
) -> None:
    """Assert the contract's tolerance: 1e-4 absolute and 1e-5 relative (Frobenius), plus one rounding to float16.

    The rounding adds at most half a unit in the last place to each value, and the norm of these to the whole.
    """
    assert found.shape == expected.shape
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    half_ulp = np.abs(expected) * 2.0**-11 + 2.0**-25 if stored == "float16" else np.zeros_like(expected)
    difference = np.abs(found - expected)
    assert (difference <= 1e-4 + half_ulp).all(), f"largest difference {difference.max()}"
    relative = np.linalg.norm(difference) / max(np.linalg.norm(expected), 1e-30)
    allowed = 1e-5 + np.linalg.norm(half_ulp) / max(np.linalg.norm(expected), 1e-30)
    assert relative <= allowed, f"relative difference {relative}"
