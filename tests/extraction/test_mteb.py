"""`Encoder.for_mteb`: mteb's evaluations take it, and give the scores of sentence-transformers."""

from __future__ import annotations

import csv
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import bertfeat
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import UserError
from tests.support.sentence_models import save_sentence_model

PROMPTS = {"query": "ask: ", "document": "one fox ", "Clustering": "the sea ", "Mine-query": "quick ", "STS": "naïve "}


@pytest.fixture(scope="module")
def prompted(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sentence_model(tiny_folder, tmp_path_factory.mktemp("prompted") / "model", prompts=PROMPTS)


@pytest.mark.parametrize(
    ("task", "kind", "prompt"),
    [
        (("Mine", "Retrieval"), "query", "quick "),
        (("Mine", "Retrieval"), "document", "one fox "),
        (("Other", "Retrieval"), "query", "ask: "),
        (("Other", "Clustering"), "query", "the sea "),
        (("Other", "Clustering"), None, "the sea "),
        (("Other", "PairClassification"), None, ""),
    ],
)
def test_texts_of_batches_have_the_prompt_of_their_task(
    prompted: Path, task: tuple[str, str], kind: str | None, prompt: str
) -> None:
    encoder = bertfeat.Encoder(str(prompted), pooling="mean", prompt="")
    model = encoder.for_mteb()
    batches = [{"text": ["one quick fox", ""]}, {"text": ["she sells sea shells"]}]
    metadata = SimpleNamespace(name=task[0], type=task[1])
    found = model.encode(
        batches, task_metadata=metadata, hf_split="test", hf_subset="default", prompt_type=kind, batch_size=1
    )
    texts = [prompt + text for batch in batches for text in batch["text"]]
    assert np.array_equal(found[[0, 2]], encoder.encode(texts, prompt="")[[0, 2]]) == (not prompt)
    assert np.array_equal(found, np.nan_to_num(encoder.encode([t.removeprefix(prompt) for t in texts], prompt=prompt)))
    assert not found[1].any()
    with pytest.raises(UserError, match="a batch of image; bertfeat encodes texts"):
        model.encode([{"image": []}], task_metadata=metadata)


def test_similarities_are_cosines(prompted: Path) -> None:
    model, vectors = bertfeat.Encoder(str(prompted)).for_mteb(), np.random.default_rng(0).normal(size=(3, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.allclose(model.similarity(vectors, vectors[:2]), unit @ unit[:2].T, atol=1e-6)
    assert np.allclose(model.similarity_pairwise(vectors, vectors[::-1].copy()), (unit * unit[::-1]).sum(1), atol=1e-6)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["minilm", "prompted"])
def test_scores_are_those_of_sentence_transformers(name: str, prompted: Path) -> None:
    mteb = pytest.importorskip("mteb")
    folder = open_checkpoint("minilm").folder if name == "minilm" else prompted
    theirs = SentenceTransformer(str(folder), device="cpu")
    model = bertfeat.Encoder(str(folder), pooling="model").for_mteb()
    assert isinstance(model, mteb.models.EncoderProtocol)
    assert not isinstance(model, mteb.models.SearchProtocol | mteb.models.CrossEncoderProtocol)
    for task in tasks():
        mine, wanted = (
            mteb.evaluate(one, [task], cache=None, show_progress_bar=False).task_results[0].scores["test"][0]
            for one in (model, theirs)
        )
        compared = [key for key, value in wanted.items() if isinstance(value, float)]
        assert len(compared) > 5
        expected = pytest.approx({key: wanted[key] for key in compared}, abs=1e-4, nan_ok=True)
        assert {key: mine[key] for key in compared} == expected
    meta = model.mteb_model_meta
    assert (meta.name, meta.embed_dim) == (f"bertfeat/{folder.name}", theirs.get_embedding_dimension())
    assert meta.revision != bertfeat.Encoder(str(folder), pooling="mean").for_mteb().mteb_model_meta.revision


def tasks() -> list[Any]:
    """Return a task of similarities and one of retrieval, of reviews: their halves, and how many words they share."""
    import datasets
    from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    with (Path(__file__).parents[2] / "examples/data/reviews.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["text"].split()[:12] for row in islice(csv.DictReader(file), 60)]
    halves = [(" ".join(words[::2]), " ".join(words[1::2])) for words in texts]
    shared = [len({*first} & {*second}) for first, second in pairwise(texts)]
    pairs = {"sentence1": [first for first, _ in halves[:-1]], "sentence2": [second for _, second in halves[1:]]}

    def described(name: str, kind: str, score: str) -> TaskMetadata:
        return TaskMetadata(
            name=name, type=kind, main_score=score, description=name, eval_splits=["test"], eval_langs=["eng-Latn"],
            dataset={"path": "none", "revision": "none"},
        )  # fmt: skip

    class Similarity(AbsTaskSTS):
        metadata = described("Similarity", "STS", "cosine_spearman")

        def load_data(self, **_: Any) -> None:
            found = datasets.Dataset.from_dict({**pairs, "score": [float(n) for n in shared]})
            self.dataset, self.data_loaded = datasets.DatasetDict({"test": found}), True

    class Halves(AbsTaskRetrieval):
        metadata = described("Halves", "Retrieval", "ndcg_at_10")

        def load_data(self, **_: Any) -> None:
            queries = [{"id": f"q{n}", "text": first} for n, (first, _) in enumerate(halves)]
            corpus = [{"id": f"d{n}", "text": second, "title": ""} for n, (_, second) in enumerate(halves)]
            relevant = {f"q{n}": {f"d{n}": 1} for n in range(len(halves))}
            split = {"relevant_docs": relevant, "top_ranked": None}
            split |= {"queries": datasets.Dataset.from_list(queries), "corpus": datasets.Dataset.from_list(corpus)}
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return [Similarity(), Halves()]
