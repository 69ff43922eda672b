"""Pre-training by masked words: documents of a corpus, their windows and masks, scores, and new models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import BertWordPieceTokenizer

from bertfeat.encoder.weights import read_json
from bertfeat.errors import CheckpointError, ConfigError, InputError, checkpoint_errors
from bertfeat.pipelines._recipe import read_documents
from bertfeat.pipelines._training import NO_LABEL, TaskModel, new_model, open_task_model
from bertfeat.text.template import read_templates

Texts = list[str]
#: The token ids of a window, and the number of each token's word.
Window = dict[str, Any]
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_USUAL_SIZE = 30_522


def read_texts(path: str, **settings: Any) -> list[Texts]:
    """Return the texts of each document: neighbouring rows with the same group, or one row."""
    # Without context, a column of documents is refused.
    rows = read_documents(path, **settings, document_context=settings.get("document_column") is not None)
    grouped = itertools.groupby(rows, key=lambda row: row.index if row.group is None else row.group)
    documents = [[row.text for row in group if row.text.strip()] for _, group in grouped]
    return [texts for texts in documents if texts]


def hold_out(documents: Sequence[Texts], share: float) -> tuple[list[Texts], list[Texts]]:
    """Split documents at random, always alike: those to train on, and that share of them, at least one."""
    n = len(documents)
    if n < 2:
        raise InputError(f"documents of the corpus: {n}; one to train on and one to hold out are needed")
    order = np.random.default_rng(0).permutation(n)
    held = set(order[: min(max(1, round(share * n)), n - 1)].tolist())
    return [documents[row] for row in range(n) if row not in held], [documents[row] for row in sorted(held)]


def open_masked_model(name: str, seed: int) -> TaskModel:
    """Load a model with a head for masked words."""
    opened = open_task_model(name, "masked", seed=seed)
    if opened.model.config.is_encoder_decoder or opened.tokenizer.mask_token_id is None:
        raise CheckpointError(f"{name}: its tokenizer has no mask token, or it is not an encoder; use another model")
    return opened


def cut_windows(documents: Sequence[Texts], tokenizer: Any, max_length: int) -> list[Window]:
    """Lay documents end to end, with a separator between two, and cut them into windows of nearly equal lengths."""
    template, _ = read_templates(tokenizer.backend_tokenizer)
    room = max_length - template.n_specials
    if room < 1:
        raise ConfigError(f"--max-length {max_length} leaves {room} tokens beside special ones; use a larger one")
    ids: list[int] = []
    words: list[int] = []
    for texts in documents:
        if ids and tokenizer.sep_token_id is not None:
            ids.append(tokenizer.sep_token_id)
            words.append(words[-1] + 1)
        encoded = tokenizer(texts, add_special_tokens=False, verbose=False)
        for number, found in enumerate(encoded["input_ids"]):
            n_before = words[-1] + 1 if words else 0
            ids += found
            words += [n_before + (word or 0) for word in encoded.word_ids(number)]
    n_windows = -(-len(ids) // room) or 1
    first, last = template.prefix.ids, template.suffix.ids
    split_ids, split_words = (np.array_split(np.array(part, np.int64), n_windows) for part in (ids, words))
    windows = [
        {"input_ids": np.concatenate([first, inside, last]), "words": np.pad(numbers, (len(first), len(last)))}
        for inside, numbers in zip(split_ids, split_words, strict=True)
    ]
    known = [window for window in windows if not np.isin(window["input_ids"], tokenizer.all_special_ids).all()]
    if not known:
        raise InputError("a part of the corpus has no word that the tokenizer knows; use more text")
    return known


class Masking:
    """Collator of windows, which masks 15 % of their tokens again each time; windows with labels stay as they are."""

    def __init__(self, tokenizer: Any, *, whole_words: bool) -> None:
        # transformers has no random replacements of whole words.
        shares = {"mask_replace_prob": 1.0, "random_replace_prob": 0.0} if whole_words else {}
        self._collator = transformers.DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole_words, **shares)
        self._pad = transformers.DataCollatorForTokenClassification(tokenizer)
        self._special_ids = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, windows: Sequence[Window]) -> dict[str, torch.Tensor]:
        """Return a batch of the model: at least one of its tokens is masked."""
        if "labels" in windows[0]:
            batch: dict[str, torch.Tensor] = self._pad(windows)
            return batch
        batch = self._pad([{"input_ids": window["input_ids"], "labels": window["words"]} for window in windows])
        ids, words = batch["input_ids"], batch["labels"]
        starts = torch.arange(words.shape[1]) + words
        offsets = torch.stack([starts, starts + 1], dim=-1)
        is_special = torch.isin(ids, self._special_ids)
        while True:
            batch["input_ids"], batch["labels"] = self._collator.torch_mask_tokens(ids.clone(), is_special, offsets)
            if (batch["labels"] != NO_LABEL).any():
                return batch

    def once(self, windows: Sequence[Window]) -> list[dict[str, Any]]:
        """Return windows with masks and labels, always alike."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            batches = [self([window]) for window in windows]
        return [{name: values[0].tolist() for name, values in batch.items()} for batch in batches]


def judge(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of each masked word and whether it is guessed: (n_windows, n_tokens, 2)."""
    losses = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
    return torch.stack([losses, (logits.argmax(-1) == labels).float()], dim=-1)


def scores_of(predicted: Any) -> dict[str, float]:
    """Return the mean loss and the share of guessed words of what `judge` says of held-out windows."""
    means = predicted.predictions[predicted.label_ids != NO_LABEL].mean(axis=0, dtype=np.float64).tolist()
    return dict(zip(("loss", "masked_accuracy"), means, strict=True))


def make_model(config_path: str, texts: Sequence[str], folder: Path, *, seed: int) -> None:
    """Write a folder with a tokenizer that is trained on texts and a model of a config.json with random weights."""
    path = Path(config_path)
    values = read_json(path)
    with (
        torch.random.fork_rng(devices=[]),
        new_model(folder, path.name) as new,
        checkpoint_errors(path, "not a config of transformers with a head for masked words", "correct the file"),
    ):
        torch.manual_seed(seed)
        tokenizer = train_tokenizer(texts, values.pop("vocab_size", _USUAL_SIZE))
        values |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        config = transformers.AutoConfig.for_model(values.pop("model_type", None), **values)
        transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(new)
        tokenizer.model_max_length = getattr(config, "max_position_embeddings", 512)
        tokenizer.save_pretrained(new)


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """Train an uncased WordPiece tokenizer as that of BERT, always alike; each letter of the texts is a piece."""
    learner = BertWordPieceTokenizer()
    # The trainer would number the letters inside words in the order of a hash table, which then decides ties.
    letters = {letter for text in texts for letter in learner.normalize(text) if not letter.isspace()}
    given = [*_SPECIALS, *sorted(f"##{letter}" for letter in letters)]
    learner.train_from_iterator(texts, vocab_size, special_tokens=given, show_progress=False)
    return transformers.BertTokenizer(vocab=learner.get_vocab())
