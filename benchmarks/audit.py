"""Audits of labels that were flipped and of texts that were copied, beside cleanlab's ranking; seconds and memory.

    python -m benchmarks.audit --data DATA [--json FILE]

DATA holds, in any folders, `banking_data/train.csv` and `test.csv` (banking77), `emerging.dev.conll` (WNUT-17) and
`en_ewt-ud-dev.conllu` (UD-EWT), as their authors publish them. 5 % of the labels are flipped at random, three times.
cleanlab ranks rows by scikit-learn's out-of-fold probabilities, with the folds and the penalty of the audit, in each of
its ways; the audit has to rank no worse than the best of them. Copies and light edits of `examples/data/reviews.csv`
are put into the reviews of the test.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.machine import report
from benchmarks.measured import measure
from bertfeat import Progress, Store, audit, extract, open_store
from bertfeat.audits.label_errors import N_FOLDS, TOLERANCE, LabelJudge
from bertfeat.audits.side import Side
from bertfeat.levels import LEVELS
from bertfeat.probes.rows import select_rows
from bertfeat.records import BoolArray

REVIEWS = Path(__file__).parents[1] / "examples" / "data"
SENTENCES = {"levels": "sentence", "layers": "-1", "pooling": "model"}
_METHODS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
_N_PLANTED, _N_DRAWS, _SHARE = 100, 3, 0.05


def flipped(store: Store, label: str, seed: int) -> tuple[pl.DataFrame, BoolArray]:
    """Return the labels of a store, 5 % of them another class at random, and which these are, (n_rows,)."""
    level = store.levels[0]
    frame, rng = store.polars(level, [*LEVELS[level].keys, label]), np.random.default_rng(seed)
    classes = frame[label].unique().sort()
    is_flipped = rng.random(frame.height) < _SHARE
    codes = classes.search_sorted(frame[label]).to_numpy() + is_flipped * rng.integers(1, len(classes), frame.height)
    return frame.with_columns(classes.gather(codes % len(classes)).alias(label)), is_flipped


def rankings(store: Store, label: str, n_draws: int = _N_DRAWS) -> dict[str, dict[str, float]]:
    """Return AUROC and the precision in the first 5 % of the rankings of bertfeat and of cleanlab: means of draws."""
    draws = [_ranked(store, label, seed) for seed in range(n_draws)]
    return {
        name: {figure: float(np.mean([draw[name][figure] for draw in draws])) for figure in ("auroc", "precision")}
        for name in draws[0]
    }


def _ranked(store: Store, label: str, seed: int) -> dict[str, dict[str, float]]:
    labels, is_flipped = flipped(store, label, seed)
    level, feature = store.levels[0], store.choose_feature(store.levels[0], None)
    rows = select_rows(store, level, feature, label, labels).with_vector
    # A word without a character that the model knows has no vector.
    is_flipped, vectors = is_flipped[rows.rows], store.take(level, feature, rows.rows).astype(np.float32)
    judge = LabelJudge(Side("train", store, level, feature, rows), 0, Progress())
    scores = {"bertfeat": judge.of_train()["own"].fill_null(1).to_numpy()}
    chances = np.zeros((len(vectors), len(judge.classes)))
    for fold in range(N_FOLDS):
        held = judge.folds == fold
        model = make_pipeline(StandardScaler(), LogisticRegression(C=judge.C, tol=TOLERANCE, max_iter=1000))
        model.fit(vectors[~held], judge.codes[~held])
        chances[np.ix_(held, model.classes_)] = model.predict_proba(vectors[held])
    for method in _METHODS:
        # cleanlab warns of probabilities of exactly 0, of classes that a fold has not seen.
        with warnings.catch_warnings(action="ignore"):
            scores[method] = get_label_quality_scores(judge.codes, chances, method=method, adjust_pred_probs=False)
    first = round(_SHARE * len(vectors))
    return {
        name: {
            "auroc": float(roc_auc_score(is_flipped, -own)),
            "precision": float(is_flipped[np.argsort(own, kind="stable")[:first]].mean()),
        }
        for name, own in scores.items()
    }


def check_rankings(found: dict[str, dict[str, float]]) -> None:
    """Check that bertfeat ranks no worse than the best of cleanlab."""
    for name, value in found["bertfeat"].items():
        best = max(found[method][name] for method in _METHODS)
        assert value >= best, f"{name} {value:.4f}, cleanlab {best:.4f}"


def edited(text: str, words: list[str], rng: random.Random) -> str:
    """Edit a text lightly: replace or drop a word, swap two, or two letters."""
    own = text.split()
    at, kind = rng.randrange(len(own) - 1), rng.randrange(4)
    if kind == 0:
        own[at] = rng.choice(words)
    elif kind == 1:
        del own[at]
    elif kind == 2:
        own[at], own[at + 1] = own[at + 1], own[at]
    else:
        longest = max(range(len(own)), key=lambda place: len(own[place]))
        word, middle = own[longest], len(own[longest]) // 2
        own[longest] = word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]
    return " ".join(own)


def planted(folder: Path) -> dict[str, int]:
    """Return how many of the copies and edits that were put into a test an audit finds, and how many other texts."""
    rng = random.Random(0)
    train, test = (pl.read_csv(REVIEWS / f"{name}.csv")["text"].to_list() for name in ("reviews", "reviews_test"))
    words = [word for text in train for word in text.split()]
    texts = rng.sample([text for text in train if text.count(" ") > 6], 2 * _N_PLANTED)
    test += texts[:_N_PLANTED] + [edited(text, words, rng) for text in texts[_N_PLANTED:]]
    data = {"train": train, "test": test}
    stores = [extract({"text": own}, folder / name, **SENTENCES) for name, own in data.items()]
    found = audit(*stores).duplicates.table.filter(pl.col("in_train").is_not_null())
    places = found["doc_id"].to_numpy() - (len(test) - 2 * _N_PLANTED)
    copies, edits = (places >= 0) & (places < _N_PLANTED), places >= _N_PLANTED
    return {"copies": int(copies.sum()), "edits": int(edits.sum()), "false": int((places < 0).sum())}


def audited(stores: list[str], label: str) -> dict[str, Any]:
    """Audit stores, and return the number of rows."""
    return {"n_rows": sum(audit(*stores, label=label).n_labelled)}


def main() -> None:
    """Measure, check and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    def find(name: str) -> Path:
        return next(given.data.rglob(name))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("train", "test"):
            corpus = find(f"banking_data/{part}.csv")
            extract(corpus, folder / f"banking-{part}", text_column="text", keep_columns="category", **SENTENCES)
        extract(find("emerging.dev.conll"), folder / "wnut", levels="word", layers=4)
        extract(find("en_ewt-ud-dev.conllu"), folder / "ewt", levels="word", layers=3)
        cases = {"banking-train": "category", "wnut": "label", "ewt": "upos"}
        ranked = {store: rankings(open_store(folder / store), label) for store, label in cases.items()}
        copies = planted(folder)
        stores = [str(folder / f"banking-{part}") for part in ("train", "test")]
        costs = [measure("benchmarks.audit:audited", stores=own, label="category") for own in (stores[:1], stores)]
    report({"flipped": ranked, "planted": copies, "costs": costs}, given.json)
    for found in ranked.values():
        check_rankings(found)
    assert copies["copies"] == _N_PLANTED
    assert copies["edits"] >= 0.95 * _N_PLANTED
    assert copies["false"] <= 0.05 * sum(copies.values())
    assert costs[0]["cpu_s"] < 30
    assert costs[0]["peak_bytes"] < 1e9


if __name__ == "__main__":
    main()
