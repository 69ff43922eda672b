"""Promises in docs/guarantees.md, with the tests whose marks name them: `python docs/promisetable.py` writes them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guarantees.md"
PLACE = re.compile(
    r"(?<=<!-- promises: written by `python docs/promisetable.py` -->\n).*(?=<!-- end of promises -->)", re.S
)

# By the question of a user: the name that `@pytest.mark.promise` has, and the promise.
PROMISES = {
    "What is lost if a run is killed, or the disk is full?": {
        "kill": "Kill a run at any moment and start it again: the files are byte for byte those of an uninterrupted run.",
        "kill-append": "Kill an append, an import or a compaction: readers see the old store or the new one, and the same "
        "command gives the bytes of an uninterrupted one. A compacted store has the same rows and bits.",
        "kill-published": "Indexes, probes, sweeps, comparisons of layers, predictions, hits, tables, plots, maps and exports "
        "are published alike: a kill at any step leaves the old one or the new one, whole.",
        "kill-cache": "A killed run with a cache gives the bytes of an uninterrupted one, unless vectors had to make room.",
        "kill-object": "The same holds on Ray and in an object store. An actor that outlives its run changes no part.",
        "disk-full": "A full disk, a write error or a failing system call is one line; nothing good is lost, and the same "
        "command goes on.",
        "overwrite": "`--overwrite` leaves the old store readable until the new one is whole.",
    },
    "How do I know that the files are what was written?": {
        "verify": "A flipped, cut, missing or swapped part and an edited manifest are found by `verify`; a rerun redoes those "
        "shards only.",
        "read": "A read returns the right rows or raises: damage anywhere but in the vectors' own bytes changes nothing or is "
        "an error. A damaged JSON file is one line.",
        "saved": "A damaged probe, sweep, index or cache is refused or made again. Probes are safetensors and JSON.",
        "held": "A store that is held open gives the rows of its opening or one error, whatever replaces it meanwhile.",
        "format": "Every version before 2.0 reads a store of format 1.",
        "changing": "A local file that changes while it is planned or encoded ends the run with one line.",
    },
    "Do several processes, machines and runs go together?": {
        "workers": "1, 2 and 4 workers, shares of a run, Ray and an object store give the same bytes, appends too.",
        "writers": "A second run on one store is refused with the first one's process. In an object store, of two writers one "
        "makes the version, and the other ends with one line.",
        "store-faults": "Lost, late, cut and refused answers of an object store: the right bytes, or one line and a rerun.",
        "dead-worker": "A shard that kills its worker twice is named; all others are done.",
        "memory": "Memory does not grow with the corpus. Out of memory in a forward pass halves the pack.",
        "append": "An append touches no old part, leaves earlier versions readable, and refuses what is not the store's. A "
        "glob over a level's folder gives the rows of the newest version, in order, when nothing is being written.",
        "threads": "Threads that load models at once leave log levels, warnings and progress bars as they were.",
    },
    "Is it the model that I named, with my settings?": {
        "plan": "A changed input byte, weight, tokenizer, config.json or setting is refused by name before anything is "
        "written; a change that affects no byte is accepted. The same holds for a probe and an index.",
        "without-effect": "A setting without effect is named in one warning; columns that would be lost are refused.",
        "other-cache": "Another model, config.json, version or setting finds nothing in a cache.",
        "hub": "Only the network is reported as an unreachable hub. A model in the cache needs no network.",
    },
    "Are the vectors right?": {
        "equal": "Every layer equals plain transformers within the bounds above; half precision keeps its cosine.",
        "compared": "A model is run only if it passes a comparison with transformers when it is loaded.",
        "sentence": "`--pooling model` equals `SentenceTransformer.encode` within 1e-5: every pooling, dense layers, prompts. "
        "The tokens of a prompt have no rows.",
        "static": "Word vectors are those of the file and of gensim; sentences of model2vec are those of its `encode`.",
        "random": "Random weights follow from the seed alone and are those of transformers.",
        "converted": "Converted pickle files give the layers that transformers gives for them.",
        "cached": "With a cache, rows are the same and vectors within the bounds above; only new texts are encoded.",
    },
    "Is any text lost, moved or cut?": {
        "rows": "Every input row is accounted for, in order. Bad rows name file, row and reason, or are set aside with their "
        "bytes. No rows, or only bad ones: a valid empty store, or one clear line.",
        "odd-text": "Unusual text neither crashes a run nor shifts a row. Windows of a novel have the tokens of the whole.",
        "input-damage": "A damaged input file is one line and never ends the process.",
        "frames": "A data frame of any library gives the bytes of the Parquet file of it, and resumes like that file.",
        "values": "Duplicate ids, and features that are not finite, are refused by name.",
    },
    "Is it safe?": {
        "pickle": "Weights are loaded from safetensors only, and nothing in a model folder runs. A hostile pickle file ends "
        "`bertfeat convert` with one line, runs nothing and leaves nothing.",
        "paths": "Ids never become paths; links in place of the output are refused; no text is logged.",
        "pages": "Pages load nothing from elsewhere and show markup of the corpus as text. The search page refuses other hosts "
        "and origins, and bounds what a request may ask. A card names no folder of this machine.",
    },
    "Are probes, searches, maps and exports right?": {
        "probes": "Scores are those of scikit-learn and seqeval. Imported vectors probe and search as extracted ones.",
        "search": "Hits and recall are those of brute force; the search page gives the hits of `bertfeat search`.",
        "layers": "Figures of layers equal references that compare all pairs of rows.",
        "map": "Coordinates and neighbors of a map are the exact ones.",
        "exports": "Exports hold the rows and vectors of the store: other readers and `bertfeat import` give them back.",
        "quick": "Mistakes, finished stores and `inspect` are answered without torch and transformers.",
    },
}


def marked_tests() -> dict[str, list[str]]:
    """Return the tests by the names in their marks, or in the marks of their class or file."""
    found = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, tree = path.relative_to(ROOT / "tests").as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                where, marks = f"{name}::{node.name}", node.decorator_list
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                where, marks = name, [node.value]
            else:
                continue
            for call in (call for mark in marks for call in ast.walk(mark) if isinstance(call, ast.Call)):
                if ast.unparse(call.func) == "pytest.mark.promise":
                    for promise in call.args:
                        found[ast.literal_eval(promise)].append(where)
    return found


def with_promises(page: str) -> str:
    """Return the page with the promises and their tests as they are now."""
    tests, lines = marked_tests(), list[str]()
    for question, promises in PROMISES.items():
        lines += [f"## {question}", "", *(f"- {promise}" for promise in promises.values()), ""]
        lines += ['<details markdown="1"><summary>Tests</summary>', ""]
        lines += [f"- {name}: {', '.join(f'`{test}`' for test in tests[name])}" for name in promises]
        lines += ["", "</details>", ""]
    return PLACE.sub(lambda _: "\n" + "\n".join(lines) + "\n", page)


if __name__ == "__main__":
    PAGE.write_text(with_promises(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
