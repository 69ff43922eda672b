"""New models for the recipe that trains on plain text: a WordPiece tokenizer and random weights.

The vocabulary is learned as that of BERT: text without case and accents, split at spaces and punctuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bertfeat.encoder.loading import no_progress_bars
from bertfeat.encoder.weights import read_json
from bertfeat.errors import ConfigError, checkpoint_errors
from bertfeat.pipelines._models import HEADS, new_model

# The names of the special tokens in transformers; their ids are in this order, as in BERT.
_SPECIALS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_USUAL_SIZE = 30_522


def make_model(config_path: str, texts: Sequence[str], head: str, folder: Path, *, seed: int) -> None:
    """Write a folder with a tokenizer that is trained on texts and a model with random weights.

    Args:
        config_path: A config.json of transformers; `vocab_size` is the most word pieces.
        texts: The texts.
        head: One of `bertfeat.pipelines._models.HEADS`.
        folder: Where to write.
        seed: The seed of the weights.

    Raises:
        ConfigError: A value of the file cannot be used, transformers has no such model with that head, or the folder
            is there and was not made by a recipe.
        CheckpointError: The file cannot be read, or transformers refuses it.
    """
    import transformers

    path = Path(config_path)
    values = read_json(path)
    class_name, title = HEADS[head]
    model_type, vocab_size = values.pop("model_type", None), values.pop("vocab_size", _USUAL_SIZE)
    if not isinstance(model_type, str):
        raise ConfigError(f'{path}: no "model_type"; write a config.json of transformers')
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size <= len(_SPECIALS):
        raise ConfigError(f"{path}: vocab_size is {vocab_size!r:.60}; it must be a whole number above {len(_SPECIALS)}")
    tokenizer = train_tokenizer(texts, vocab_size)
    if len(tokenizer) > vocab_size:
        raise ConfigError(
            f"{path}: vocab_size is {vocab_size}, but the letters of the corpus alone make {len(tokenizer)} pieces; "
            "use a larger one"
        )
    values |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    auto = getattr(transformers, class_name)
    with (
        torch.random.fork_rng(devices=[]),
        no_progress_bars(),
        new_model(folder, path.name) as new,
        checkpoint_errors(path, "not a config of transformers", "correct the file"),
    ):
        torch.manual_seed(seed)
        config = transformers.AutoConfig.for_model(model_type, **values)
        if type(config) not in auto._model_mapping:
            raise ConfigError(f"{path}: transformers has no {title} for {model_type}; use another model")
        auto.from_config(config).save_pretrained(new)
        tokenizer.model_max_length = getattr(config, "max_position_embeddings", 512)
        tokenizer.save_pretrained(new)


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """Train a WordPiece tokenizer with at most that many pieces, special tokens included; return it for transformers.

    It has more where the letters of the texts alone are more. The same texts give the same tokenizer.
    """
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    specials = list(_SPECIALS.values())
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    learner.normalizer, learner.pre_tokenizer = normalizer, splitter
    # The trainer numbers the letters inside words in the order of a hash table, which then decides ties. Tokens that
    # are given to it keep their order.
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    letters = sorted({f"##{letter}" for word in words for letter in word[1:]})
    given = [*specials, *letters]
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=given, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    tokenizer = Tokenizer(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, splitter, decoders.WordPiece()
    first, last = ((token, given.index(token)) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(last, first)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIALS)
