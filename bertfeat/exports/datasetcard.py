"""Card of a store for a hub of data sets: its levels as configurations, its provenance, and how to read it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bertfeat.choices import Level
from bertfeat.display import model_text, printable
from bertfeat.errors import UserError
from bertfeat.storage import ObjectPath
from bertfeat.store.storedescription import StoreDescription

# The hub's names for numbers of rows.
# The hub's categories of sizes are between these, which are powers of ten from a thousand on.
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_ROW_OF = {Level.TOKEN: "a sub-word token", Level.WORD: "a word", Level.SENTENCE: "a whole document"}
_SETTINGS = (
    *("family", "layers", "combine", "pooling", "word_pooling", "prompt", "include_special_tokens"),
    *("document_context", "max_length", "stride", "store_dtype"),
    *("weights_sha256", "tokenizer_sha256", "versions", "plan_hash"),
)
_READ = """
Layer 0 is the output of the embedding layer. A row without a vector is null.

## Read it

```python
from datasets import load_dataset

rows = load_dataset("FOLDER", "{level}")["train"]
```

```python
import bertfeat

store = bertfeat.open_store("FOLDER")
vectors = store.numpy("{level}", {feature})
```

## Made with
"""


def dataset_card(store: str | Path | ObjectPath | StoreDescription, *, license: str | None = None) -> str:  # noqa: A002
    """Return the card of a store as Markdown, for README.md in the store's folder.

    Args:
        store: A finished store, its folder or its URL.
        license: The licence of the texts and the model, such as `cc-by-4.0`; nothing is said without it.

    Raises:
        UserError: The store has no rows, or the licence is empty.
        StoreError: There is no finished store.
    """
    opened = store if isinstance(store, StoreDescription) else StoreDescription.at(store)
    if license is not None and not license.strip():
        raise UserError("`license` '' must be a name, such as cc-by-4.0; or drop it")
    levels = [level for level in opened.levels if opened.n_rows(level)]
    if not levels:
        raise UserError(f"{opened.path}: has no rows; there is nothing to describe")
    return "\n".join([*_head(opened, levels, license), *_body(opened, levels)]) + "\n"


def _head(store: StoreDescription, levels: list[Level], license_: str | None) -> list[str]:
    """Return the block of YAML."""
    most = max(store.n_rows(level) for level in levels)
    n_passed = sum(most >= 10 ** (3 + place) for place in range(len(_SIZES)))
    bounds = ("n", *_SIZES, "n")[n_passed : n_passed + 2]
    size = "n>1T" if bounds[0] == "1T" else "<".join(dict.fromkeys((bounds[0], "n", bounds[1])))
    lines = ["---", f"pretty_name: {_quoted(f'Features of {_model(store)}')}"]
    lines += [f"license: {_quoted(license_.strip())}"] if license_ else []
    lines += ["tags:", "- bertfeat", "- embeddings", "size_categories:", f"- {_quoted(size)}", "configs:"]
    default = Level.SENTENCE if Level.SENTENCE in levels else levels[0]
    for level in levels:
        lines += [f"- config_name: {level}", *(["  default: true"] if level is default else []), "  data_files:"]
        lines += ["  - split: train", f'    path: "{level}/*.parquet"']
    return [*lines, "---", ""]


def _body(store: StoreDescription, levels: list[Level]) -> list[str]:
    lines = [f"# Features of {_code(_model(store))}", ""]
    lines += ["Vectors of a text encoder, made by bertfeat. Each level is a configuration.", ""]
    lines += ["| level | a row is | rows | bytes | vectors (width) | other columns |", "|---|---|---|---|---|---|"]
    for level in levels:
        schema = store.schema(level)
        n_bytes = sum(part.n_bytes for part in store.parts(level))
        vectors = ", ".join(f"{_code(feature.name)} ({feature.dim})" for feature in schema.features)
        columns = ", ".join(_code(column.name) for column in schema.columns)
        cells = (level, _ROW_OF[level], f"{store.n_rows(level):,}", f"{n_bytes:,}", vectors, columns)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    name = store.features(levels[0])[0].name
    lines += _READ.format(level=levels[0], feature=json.dumps(name)).split("\n")
    given = {"model": _model(store)} | {name: store.metadata.get(name) for name in _SETTINGS}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items() if value}
    return lines + [f"- {name}: {_code(text)}" for name, text in texts.items()]


def _model(store: StoreDescription) -> str:
    """Return the model's name; of a path its last part, which says nothing about a machine."""
    name = str(store.metadata["model"])
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return model_text({**store.metadata, "model": Path(name).name if is_path else name})


def _quoted(text: str) -> str:
    """Return a text of one line for YAML."""
    return '"' + "".join(c if c.isascii() and c not in '"\\' else f"\\U{ord(c):08x}" for c in printable(text)) + '"'


def _code(text: str) -> str:
    """Return a text of one line as Markdown's code, in which only a run of backticks is special."""
    shown = printable(text)
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    return f"{fence}{shown}{fence}" if len(fence) == 1 else f"{fence} {shown} {fence}"
