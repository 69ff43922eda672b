"""Static vectors in an extraction: their tokenizers, and the settings that need an encoder."""

from __future__ import annotations

from bertfeat.choices import ComputeDtype, Level, OnOverlong, Pooling, UnknownWords
from bertfeat.config import ExtractConfig
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.errors import ConfigError
from bertfeat.text.tokenizer import Tokenizer

# Settings of windows, special tokens and prompts, with the values that change nothing.
_WITHOUT_MEANING = {
    "document_context": (False,),
    "include_special_tokens": (False,),
    "prompt": (None, ""),
    "prompt_name": (None,),
    "stride": (None, 0),
    "compute_dtype": (ComputeDtype.AUTO, ComputeDtype.FLOAT32),
}
_WITHOUT_TOKENS = (Pooling.CLS, Pooling.POOLER, Pooling.LASTTOKEN)


def check_static(config: ExtractConfig, checkpoint: Checkpoint, *, tokens: bool = True) -> None:
    """Refuse settings that have no effect with a model: most of them for static vectors, one for all others.

    Args:
        config: The settings.
        checkpoint: The model.
        tokens: Whether the token level is asked for if it is among the levels.

    Raises:
        ConfigError: A setting would be ignored.
    """
    static = checkpoint.static
    has_words = static is not None and static.words is not None
    if config.unknown_words is not UnknownWords.NULL and not has_words:
        raise ConfigError("`unknown_words` has an effect with files of word vectors only; drop it")
    if static is None:
        return
    what = f"with the static vectors of {config.model}"
    for name, usual in _WITHOUT_MEANING.items():
        if (value := getattr(config, name, usual[0])) not in usual:
            raise ConfigError(f"`{name}={value!r}` has no effect {what}; drop it")
    # A model's own embedding may read a text up to a length.
    sentence = checkpoint.sentence_model() if config.pooling is Pooling.MODEL else None
    length = sentence.max_length if sentence else None
    if config.max_length not in (None, checkpoint.max_length, length):
        raise ConfigError(f"`max_length={config.max_length}` has no effect {what}, which read each text whole; drop it")
    if config.pooling in _WITHOUT_TOKENS and Level.SENTENCE in config.levels:
        raise ConfigError(f"`pooling='{config.pooling}'` cannot be used {what}; use mean or max")
    if config.on_overlong is not OnOverlong.WINDOW and length is None:
        raise ConfigError(f"`on_overlong='{config.on_overlong}'` has no effect {what}, which have no limit; drop it")
    if has_words and tokens and Level.TOKEN in config.levels:
        raise ConfigError(f"`levels='token'`: a token is a word {what}; pass `levels='word'`")
    if has_words and config.pooling is Pooling.MODEL:
        raise ConfigError(f"`pooling='model'` cannot be used {what}; pass `pooling='mean'`")


def open_tokenizer(checkpoint: Checkpoint, *, given_words: bool) -> Tokenizer:
    """Return the tokenizer of a model.

    Raises:
        CheckpointError: The tokenizer cannot be used.
    """
    static, n_ids = checkpoint.static, checkpoint.n_ids
    if static is None:
        return Tokenizer.load(checkpoint.folder, given_words=given_words, n_ids=n_ids)
    is_uncased = static.words.is_uncased if static.words else None
    return Tokenizer.load_static(static.file.parent, given_words=given_words, n_ids=n_ids, is_uncased=is_uncased)
