"""A model's own sentence embedding as its folder describes it, and its prompts; `sentencefiles` reads them.

Loads neither torch nor transformers; `sentencesteps` computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from bertfeat.durable.records import hash_of_json
from bertfeat.errors import ConfigError

# The description of a sentence embedding that cannot be computed here.
UNSUPPORTED = "other means, which bertfeat does not support"


class SentenceMode(StrEnum):
    """A pooling mode of sentence-transformers, in the order in which the flags of the old spelling are joined."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN_TOKENS = "mean_sqrt_len_tokens"
    WEIGHTEDMEAN = "weightedmean"
    LASTTOKEN = "lasttoken"


# In plain words.
_WORDS = {
    SentenceMode.CLS: "first token",
    SentenceMode.MAX: "maximum",
    SentenceMode.MEAN: "mean",
    SentenceMode.MEAN_SQRT_LEN_TOKENS: "sum over the square root of the length",
    SentenceMode.WEIGHTEDMEAN: "mean weighted by position",
    SentenceMode.LASTTOKEN: "last token",
}


@dataclass(frozen=True, slots=True)
class DenseStep:
    """A dense layer: the activation of `weight @ vector + bias`, and the vector added to it if there is a residual.

    Attributes:
        file: Its weights, links followed.
        has_residual: Whether it adds its input, projected where the widths differ.
        activation: The class of torch.nn, such as `Tanh`.
        sha256: sha256 (hex) of the weights.
    """

    file: Path
    in_features: int
    out_features: int
    has_bias: bool
    has_residual: bool
    activation: str
    sha256: str

    def __str__(self) -> str:
        residual = ", plus its input" if self.has_residual else ""
        return f"a dense layer ({self.in_features} to {self.out_features}, {self.activation.lower()}{residual})"

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every array in its file."""
        shape = (self.out_features, self.in_features)
        projects = self.has_residual and self.in_features != self.out_features
        return {
            "linear.weight": shape,
            **({"linear.bias": shape[:1]} if self.has_bias else {}),
            **({"residual.weight": shape} if projects else {}),
        }


@dataclass(frozen=True, slots=True)
class NormalizeStep:
    """Division of a vector by its length."""

    def __str__(self) -> str:
        return "normalises"


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """How a model makes one vector of the states of a text's tokens, special tokens included.

    Attributes:
        modes: The pooled vectors that are joined, in their order.
        include_prompt: Whether the tokens of a prompt are pooled too.
        steps: What is done to the pooled vector, in order.
        max_length: The tokens per text that the model was tuned on, special tokens included; None where no file says
            it. The model's own limit may be lower.
        has_special_tokens: Whether special tokens are added to a text and pooled too.
    """

    modes: tuple[SentenceMode, ...]
    include_prompt: bool
    steps: tuple[DenseStep | NormalizeStep, ...]
    max_length: int | None
    has_special_tokens: bool = True

    @property
    def sha256(self) -> str:
        """sha256 (hex) over modes, prompt rule and steps with their weights.

        Equal for both spellings of the same settings; the length is not part of it.
        """
        steps = []
        for step in self.steps:
            facts = dataclasses.asdict(step)
            steps.append([type(step).__name__, {key: facts[key] for key in facts if key != "file"}])
        return hash_of_json([self.modes, self.include_prompt, steps])

    def dim(self, hidden_size: int) -> int:
        """Return the width of the embedding of a model whose states have `hidden_size` values."""
        widths = [step.out_features for step in self.steps if isinstance(step, DenseStep)]
        return widths[-1] if widths else len(self.modes) * hidden_size

    def describe(self) -> str:
        """Return the embedding in plain words.

        Examples:
            >>> from bertfeat.encoder.checkpoint import open_checkpoint
            >>> open_checkpoint("minilm").sentence_model().describe()
            'mean with special tokens, then normalises'
        """
        pooled = " and ".join(_WORDS[mode] for mode in self.modes)
        if len(self.modes) > 1:
            pooled += " joined"
        elif self.modes[0] not in (SentenceMode.CLS, SentenceMode.LASTTOKEN):
            pooled += " with special tokens" if self.has_special_tokens else ""
        prompt = "" if self.include_prompt else ", without the prompt"
        return ", then ".join((f"{pooled}{prompt}", *map(str, self.steps)))


@dataclass(frozen=True, slots=True)
class Prompts:
    """The texts that a model wants before the texts to encode.

    Attributes:
        texts: The prompts by name.
        default_name: The name of the prompt for texts of no named kind; None for none.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default_name: str | None = None

    def text_of(self, name: str) -> str:
        """Return the prompt of that name.

        Raises:
            ConfigError: The model has no such prompt; the message lists those there are.
        """
        if name not in self.texts:
            there = f"choose one of {', '.join(sorted(self.texts))}" if self.texts else "pass its text with `prompt`"
            raise ConfigError(f"`prompt_name` {name!r}: the model has no prompt of that name; {there}")
        return self.texts[name]

    @property
    def query(self) -> str | None:
        """The prompt for queries, as in `encode_query` of sentence-transformers, or None."""
        return self.texts.get("query") or None

    @property
    def document(self) -> str | None:
        """The prompt for documents, or None."""
        return None if self.document_name is None else self.texts[self.document_name]

    @property
    def document_name(self) -> str | None:
        """The name of the prompt for documents: the first of `document`, `passage` and `corpus` that is not empty.

        That is the rule that `encode_document` of sentence-transformers states. Its 6.2 never reaches the second name,
        because it adds an empty `document` first.
        """
        return next((name for name in ("document", "passage", "corpus") if self.texts.get(name)), None)
