"""The recipe for masked words: guesses, pseudo-log-likelihood and surprisal equal to one text at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import transformers

import bertfeat
from tests.support.families import HIDDEN, MAX_LENGTH, SENTENCES, build_model
from tests.support.pipeline_runs import result_of

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

LONG = " ".join(SENTENCES)


def with_head(model_type: str, folder: Path, auto: str) -> Path:
    """A tiny model of a family with a head for words, whose weights are in its files."""
    build_model(model_type, folder)
    model = getattr(transformers, auto).from_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_head("bert", tmp_path_factory.mktemp("bert"), "BertForMaskedLM")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_head("gpt2", tmp_path_factory.mktemp("gpt2"), "GPT2LMHeadModel")


def written(folder: Path, *texts: str) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def test_the_words_for_each_mask_are_those_of_the_head(bert: Path, tmp_path: Path) -> None:
    texts = ["The quick [MASK] fox jumps over the [MASK] dog.", "He buys [MASK]."]
    found = result_of(tmp_path / "out", "masked_words", *texts, "--model", bert, "-k", 3, "--layers", "2,4")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    model = transformers.BertForMaskedLM.from_pretrained(bert).eval()
    expected, states = [], []
    for number, text in enumerate(texts):
        inputs = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0]
        with torch.no_grad():
            output = model(**inputs, output_hidden_states=True)
        for place in torch.nonzero(inputs["input_ids"][0] == tokenizer.mask_token_id).flatten().tolist():
            best = output.logits[0, place].softmax(-1).topk(3)
            words = [tokenizer.decode([found]).strip() for found in best.indices.tolist()]
            expected += [
                (number, int(offsets[place, 0]), rank, word, pytest.approx(value, rel=1e-4))
                for rank, (word, value) in enumerate(zip(words, best.values.tolist(), strict=True), 1)
            ]
            states.append(output.hidden_states[2][0, place].numpy())
    rows = [
        tuple(row[name] for name in ("doc_id", "char_start", "rank", "word", "probability")) for row in found["words"]
    ]
    assert rows == expected
    masks = pl.read_parquet(tmp_path / "out" / "masks.parquet")
    assert masks["doc_id"].to_list() == [0, 0, 1]
    assert [
        text[a:b] for text, a, b in zip([texts[0], *texts], masks["char_start"], masks["char_end"], strict=True)
    ] == ["[MASK]"] * 3
    assert np.allclose(np.stack(masks["layer_02"].to_list()), states, rtol=2**-10, atol=1e-5), "stored as float16"
    assert np.stack(masks["layer_04"].to_list()).shape == (3, HIDDEN)
    assert masks["word"].list.len().to_list() == [3, 3, 3]


def pseudo_log_likelihood(
    model: transformers.BertForMaskedLM, tokenizer: transformers.PreTrainedTokenizerFast, text: str
) -> list[float]:
    """The log probability of each word of a text that fits a window, one token at a time."""
    encoding = tokenizer(text, return_tensors="pt")
    ids, words = encoding["input_ids"], encoding.word_ids()
    sums: dict[int, float] = {}
    for place, word in enumerate(words):
        if word is None:
            continue
        masked = ids.clone()
        for later in range(place, len(words)):
            if words[later] == word:
                masked[0, later] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=masked).logits[0, place]
        sums[word] = sums.get(word, 0.0) + float(logits.log_softmax(-1)[ids[0, place]])
    return list(sums.values())


def test_pseudo_log_likelihoods_equal_those_of_one_token_at_a_time(bert: Path, tmp_path: Path) -> None:
    texts = [SENTENCES[0], "", SENTENCES[2]]
    found = result_of(tmp_path / "out", "masked_words", "--corpus", written(tmp_path, *texts), "--model", bert)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    model = transformers.BertForMaskedLM.from_pretrained(bert).eval()
    words = pl.read_parquet(tmp_path / "out" / "words.parquet")
    assert words["n_tokens"].max() > 1, "words of several tokens"
    for number, text in enumerate(texts):
        rows = words.filter(pl.col("doc_id") == number)
        expected = pseudo_log_likelihood(model, tokenizer, text) if text else []
        assert rows["log_prob"].to_list() == [pytest.approx(value, abs=1e-4) for value in expected]
        assert [text[a:b] for a, b in rows.select("char_start", "char_end").rows()] == rows["word"].to_list()
    assert found["score"] == "pseudo-log-likelihood"
    assert found["log_prob"] == pytest.approx(words["log_prob"].sum())
    assert found["surprisal_per_word"] == pytest.approx(words["surprisal"].mean())
    assert found["perplexity_per_token"] == pytest.approx(math.exp(-words["log_prob"].sum() / words["n_tokens"].sum()))
    documents = pl.read_parquet(tmp_path / "out" / "documents.parquet")
    assert documents["doc_id"].to_list() == [0, 2]
    assert documents["log_prob"].sum() == pytest.approx(found["log_prob"])
    # The rows are those of the word level.
    store = bertfeat.extract(tmp_path / "texts.jsonl", tmp_path / "store", model=str(bert), levels="word")
    keys = ["doc_id", "word_index", "word", "char_start", "char_end", "n_tokens"]
    assert store.polars("word", keys).equals(words.select(keys))


def test_next_words_of_long_texts_follow_half_a_window_or_more(gpt2: Path, tmp_path: Path) -> None:
    result = result_of(tmp_path / "out", "masked_words", "--corpus", written(tmp_path, LONG), "--model", gpt2)
    assert (result["score"], result["n_words_without_score"]) == ("log-likelihood", 0)
    words = pl.read_parquet(tmp_path / "out" / "words.parquet")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    encoding = tokenizer(LONG, add_special_tokens=False)
    first, last = tokenizer("", return_tensors="pt")["input_ids"].split(1, dim=1)
    ids = torch.tensor([encoding["input_ids"]])
    room, expected = MAX_LENGTH - 2, torch.zeros(ids.shape[1])
    for start in range(0, ids.shape[1] - room // 2, room // 2):
        window = torch.cat([first, ids[:, start : start + room], last], dim=1)
        with torch.no_grad():
            logs = model(input_ids=window).logits[0, :-2].log_softmax(-1)
        found = logs.gather(1, window[0, 1:-1, None])[:, 0]
        begin = start + room // 2 if start else 0
        expected[begin : start + room] = found[begin - start :]
    sums = torch.zeros(len(words)).index_add(0, torch.tensor(encoding.word_ids()), expected)
    assert len(words) > MAX_LENGTH
    assert words["log_prob"].to_list() == [pytest.approx(value, abs=1e-4) for value in sums.tolist()]
    assert words["surprisal"].to_list() == pytest.approx((-words["log_prob"] / math.log(2)).to_list())
