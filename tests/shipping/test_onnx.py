"""ONNX graphs of shipped probes: the labels and probabilities of `probe predict`, in ONNX Runtime alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tokenizers import Tokenizer

import bertfeat
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import UserError
from bertfeat.probes.fitted import FittedProbe
from bertfeat.shipping.onnx_folder import ProbeNetwork
from tests.support.families import SENTENCES, build_model

pytestmark = pytest.mark.usefixtures("one_thread")

# Of different lengths, some too long for the tiny models, and one without a token.
TEXTS = [*SENTENCES[:5], "fox", "", *(" ".join(text.split()[:4]) for text in SENTENCES)]
# Labels that mean nothing, so that scores are near each other.
LABELS = {
    "name": [["left", "up", "right"][n * n % 7 % 3] for n in range(200)],
    "two": [n % 5 < 2 for n in range(200)],
    "number": [n * n % 7 / 3 for n in range(200)],
    "names": [["wide"] * (n % 2) + ["high"] * (n % 3 == 0) for n in range(200)],
}
SMALL = {"max_epochs": 3, "early_stopping": False, "lr": 0.05}
MLP = {"head": "mlp", "hidden_size": 8, **SMALL}
WORDS, TOKENS = {"levels": "word"}, {"levels": "token"}

# Model, label, settings of the extraction, settings of the probe: each pooling, head, task and family occurs.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "mean": ("bert", "name", {"layers": "2"}, {"head": "logreg"}),
    "max of sums": ("roberta", "name", {"layers": "1,3", "combine": "sum", "pooling": "max"}, MLP),
    "cls": ("distilbert", "two", {"layers": "3", "pooling": "cls"}, {"head": "logreg"}),
    "lasttoken": ("gpt2", "two", {"layers": "-1", "pooling": "lasttoken"}, MLP),
    "weightedmean": ("llama", "number", {"layers": "2", "pooling": "weightedmean"}, {"head": "ridge"}),
    "concat": (
        "modernbert",
        "names",
        {"layers": "1,2", "combine": "concat", "include_special_tokens": True},
        {"head": "logreg"},
    ),
    "pooler": ("bert", "name", {"pooling": "pooler"}, {"head": "svm"}),
    "model": ("minilm", "name", {"pooling": "model"}, MLP),
    "mix": ("minilm", "names", {"layers": "2,3"}, {**MLP, "mix": "2,3"}),
    "numbers": ("bert", "number", {"layers": "1,2", "combine": "mean"}, MLP),
    "centroid": ("bert", "name", {"layers": "2"}, {"head": "centroid"}),
    "first": ("minilm", "name", {**WORDS, "layers": "2", "word_pooling": "first"}, {"head": "logreg"}),
    "last": ("roberta", "name", {**WORDS, "layers": "2", "word_pooling": "last"}, {"head": "linear", **SMALL}),
    "words": ("modernbert", "names", {**WORDS, "layers": "1,2", "combine": "concat", "word_pooling": "mean"}, MLP),
    "max of words": ("gpt2", "number", {**WORDS, "layers": "2", "word_pooling": "max"}, {"head": "ridge"}),
    "tokens": ("distilbert", "name", {**TOKENS, "layers": "2"}, {"head": "logreg"}),
    "mix of tokens": ("bert", "two", {**TOKENS, "layers": "1,2"}, {**MLP, "mix": "1,2"}),
}
# Those that are exported too; the others in the long tests.
QUICK = ("mix", "words")
# A process that has neither torch nor transformers nor bertfeat.
ALONE = """
import json, sys
sys.modules |= dict.fromkeys(["torch", "transformers", "bertfeat", "onnx"])
import numpy as np, onnxruntime
from tokenizers import Tokenizer
folder, out, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
session = onnxruntime.InferenceSession(folder + "/model.onnx")
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
found = []
for batch in texts:
    encoded = tokenizer.encode_batch(batch)
    arrays = {
        "input_ids": [one.ids for one in encoded],
        "attention_mask": [one.attention_mask for one in encoded],
        "word_ids": [[-1 if word is None else word for word in one.word_ids] for one in encoded],
    }
    names = [each.name for each in session.get_inputs()]
    (output,) = session.run(None, {name: np.array(arrays[name], dtype=np.int64) for name in names})
    found.append(output.reshape(len(batch), -1, output.shape[-1]))
n_rows = max(output.shape[1] for output in found)
pad = lambda output: np.pad(output, ((0, 0), (0, n_rows - output.shape[1]), (0, 0)), constant_values=np.nan)
np.save(out, np.concatenate([pad(output) for output in found]))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models by their types."""
    base = tmp_path_factory.mktemp("models")
    types = ("bert", "roberta", "distilbert", "modernbert", "gpt2", "llama")
    return {kind: build_model(kind, base / kind) for kind in types}


def fit(name: str, folders: dict[str, Path], tmp_path: Path) -> FittedProbe:
    kind, label, extract, settings = CASES[name]
    settings, corpus = dict(settings), pl.DataFrame({"text": TEXTS})
    how = {"levels": "sentence", "store_dtype": "float32", "on_overlong": "truncate", **extract}
    store = bertfeat.extract(corpus, tmp_path / "store", model=str(folders.get(kind, kind)), **how)
    level = how["levels"]
    frame = store.polars(level, ["doc_id", f"{level}_index"] if level != "sentence" else ["doc_id"])
    labels = frame.with_columns(pl.Series("y", LABELS[label][: frame.height]))
    return bertfeat.fit_probe(store, "y", level=level, labels=labels, **settings)


def check(probe: FittedProbe, outputs: np.ndarray) -> None:
    """Compare outputs, (n_texts, n_rows, n_outputs), with what the probe predicts of TEXTS."""
    want, task, classes = probe.predict(TEXTS), probe.probe.task, probe.probe.classes_.tolist()
    row = want.select(pl.int_range(pl.len()).over("doc_id")).to_series().to_numpy()
    # Words that were cut off have a row in the probe's answer only.
    n_more = max(0, row.max() + 1 - outputs.shape[1])
    padded = np.pad(outputs.astype(np.float64), ((0, 0), (0, n_more), (0, 0)), constant_values=np.nan)
    has_label = want["prediction"].is_not_null().to_numpy()
    rows = padded[want["doc_id"].to_numpy(), row]
    assert np.array_equal(np.isfinite(rows).all(axis=1), has_label)
    assert has_label.sum() >= len(TEXTS) - 1
    columns = rows[has_label], want["prediction"].drop_nulls(), want["probability"].filter(has_label)
    for got, label, probability in zip(*columns, strict=True):
        if task == "regress":
            assert got == pytest.approx([label], abs=1e-4)
        elif task == "multilabel":
            assert [name for name, p in zip(classes, got, strict=True) if p > 0.5] == list(label)
            assert got[got > 0.5] == pytest.approx(list(probability), abs=1e-5)
        else:
            assert classes[got.argmax()] == label
            assert probability is None or got.max() == pytest.approx(probability, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_padded_batch_gets_what_the_probe_predicts(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """The network before its export, which takes most of the time."""
    probe = fit(name, folders, tmp_path)
    checkpoint = open_checkpoint(probe.spec.model)
    tokenizer = Tokenizer.from_file(str(checkpoint.folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(probe.spec.max_length)
    encoded = tokenizer.encode_batch(TEXTS)
    inputs = [[one.ids for one in encoded], [one.attention_mask for one in encoded]]
    if probe.level == "word":
        inputs.append([[-1 if word is None else word for word in one.word_ids] for one in encoded])
    with torch.inference_mode():
        found = ProbeNetwork(probe, checkpoint).eval()(*map(torch.tensor, inputs)).numpy()
    check(probe, found.reshape(len(TEXTS), -1, found.shape[-1]))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.long) for n in CASES])
def test_onnx_runtime_alone(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    probe = fit(name, folders, tmp_path)
    shipped = probe.ship(tmp_path / "folder", to="onnx")
    about = json.loads((shipped.path / "labels.json").read_text("utf-8"))
    assert (about["labels"], about["level"], about["task"]) == (
        probe.probe.classes_.tolist(),
        probe.level,
        probe.probe.task,
    )
    assert str(Path.cwd()).encode() not in (shipped.path / "model.onnx").read_bytes()
    # A batch of one text and others.
    batches = json.dumps([TEXTS[:1], TEXTS[1:8], TEXTS[8:]])
    command = [sys.executable, "-c", ALONE, str(shipped.path), str(tmp_path / "o.npy"), batches]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stderr == ""
    check(probe, np.load(tmp_path / "o.npy"))


def test_a_graph_for_one_number_of_texts_is_refused(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: ProbeNetwork, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (ids * mask).sum(dim=1) + torch.ones(len(ids))

    monkeypatch.setattr(ProbeNetwork, "forward", forward)
    with pytest.raises(UserError, match=r"type bert only for the shape \[2,length\];"):
        fit("mean", folders, tmp_path).ship(tmp_path / "folder", to="onnx")
    assert not (tmp_path / "folder").exists()
