"""An `Encoder` as mteb's evaluations take it; only `mteb_model_meta` needs mteb."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertfeat.errors import InputError
from bertfeat.records import Float32Array

if TYPE_CHECKING:
    from bertfeat.extraction.text_encoder import Encoder

Array = Float32Array | torch.Tensor


class MtebEncoder:
    """An `Encoder` with the methods of mteb's `EncoderProtocol` (mteb 2); see `Encoder.for_mteb`.

    Args:
        encoder: What encodes the texts.
        prompts: The model's own prompts: by a task's name or type, with `-query` or `-document` or alone.
        meta: The fields of mteb's `ModelMeta` that are known.
    """

    def __init__(self, encoder: Encoder, prompts: Mapping[str, str], meta: Mapping[str, Any]) -> None:
        self._encoder, self._prompts, self._meta = encoder, prompts, meta

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, prompt_type: str | None = None, **_: Any
    ) -> Float32Array:
        """Return a vector per text of some batches, float32 (n_texts, dim); zeros for a text without tokens.

        The prompt is the model's own for the task, for the type of the task, or for queries or documents.

        Raises:
            InputError: A batch has no texts.
        """
        texts = []
        for batch in inputs:
            if "text" not in batch:
                raise InputError(f"a batch of {', '.join(batch)}; bertfeat encodes texts", path=str(task_metadata.name))
            texts += batch["text"]
        kind = None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))
        for name in (task_metadata.name, task_metadata.type):
            for prompt in (f"{name}-{kind}", name):
                if prompt in self._prompts:
                    return np.nan_to_num(self._encoder.encode(texts, prompt=self._prompts[prompt]))
        kinds: dict[str | None, Callable[..., Float32Array]] = {"query": self._encoder.encode_query}
        kinds["document"] = self._encoder.encode_document
        return np.nan_to_num(kinds.get(kind, self._encoder.encode)(texts))

    def similarity(self, embeddings1: Array, embeddings2: Array) -> torch.Tensor:
        """Return the cosine of each vector, (n, dim), with each of the others, (m, dim): float32 (n, m)."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> torch.Tensor:
        """Return the cosine of each vector, (n, dim), with its partner, (n, dim): float32 (n,)."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(dim=-1)

    @property
    def mteb_model_meta(self) -> Any:
        """The model as mteb records it. Its revision is a digest of the settings, so that their results stay apart."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        return ModelMeta.create_empty({**self._meta, "similarity_fn_name": ScoringFunction.COSINE})


def _unit(vectors: Array) -> torch.Tensor:
    found = torch.as_tensor(vectors).float()
    return torch.nn.functional.normalize(found if found.ndim > 1 else found[None], dim=-1)
