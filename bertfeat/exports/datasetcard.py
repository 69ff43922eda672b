"""Card of a store for a hub of data sets: its levels as configurations, its provenance, and how to read it."""

from __future__ import annotations

import json
from pathlib import Path

from bertfeat.choices import Level
from bertfeat.display import model_text
from bertfeat.errors import UserError
from bertfeat.storage import ObjectPath
from bertfeat.store.storedescription import StoreDescription

# The hub's names for numbers of rows.
_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 10**6: "100K<n<1M", 10**7: "1M<n<10M"}
_SIZES |= {10**8: "10M<n<100M", 10**9: "100M<n<1B"}
_LARGEST = "n>1B"
_ROW_OF = {Level.TOKEN: "a sub-word token", Level.WORD: "a word", Level.SENTENCE: "a whole document"}
_SETTINGS = (
    *("model", "family", "layers", "combine", "pooling", "word_pooling", "max_length", "stride", "store_dtype"),
    *("weights_sha256", "tokenizer_sha256", "versions", "plan_hash"),
)


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
    return "\n".join([*_head(opened, levels, license), "", *_body(opened, levels)]) + "\n"


def _head(store: StoreDescription, levels: list[Level], license_: str | None) -> list[str]:
    """Return the YAML block; a JSON text is a YAML text."""
    most = max(store.n_rows(level) for level in levels)
    size = next((name for limit, name in _SIZES.items() if most < limit), _LARGEST)
    lines = ["---", f"pretty_name: {json.dumps(f'Features of {_model(store)}')}"]
    lines += [f"license: {json.dumps(license_.strip())}"] if license_ else []
    lines += ["tags:", "- bertfeat", "- embeddings", "size_categories:", f"- {json.dumps(size)}", "configs:"]
    default = Level.SENTENCE if Level.SENTENCE in levels else levels[0]
    for level in levels:
        lines += [f"- config_name: {level}", *(["  default: true"] if level is default else []), "  data_files:"]
        lines += ["  - split: train", f'    path: "{level}/*.parquet"']
    return [*lines, "---"]


def _body(store: StoreDescription, levels: list[Level]) -> list[str]:
    facts = store.metadata
    lines = [f"# Features of {_model(store)}", ""]
    lines += ["Vectors of a text encoder, made by bertfeat. Each level is a configuration.", ""]
    lines += ["| level | a row is | rows | bytes | vectors (width) | other columns |", "|---|---|---|---|---|---|"]
    for level in levels:
        schema = store.schema(level)
        n_bytes = sum(part.n_bytes for part in store.parts(level))
        vectors = ", ".join(f"`{feature.name}` ({feature.dim})" for feature in schema.features)
        columns = ", ".join(f"`{column.name}`" for column in schema.columns)
        row = (level, _ROW_OF[level], f"{store.n_rows(level):,}", f"{n_bytes:,}", vectors, columns)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    lines += [
        "",
        "Layer 0 is the output of the embedding layer. A row without a vector is null.",
        "",
        "## Made with",
        "",
    ]
    given = {name: facts[name] for name in _SETTINGS if facts.get(name) is not None} | {"model": _model(store)}
    lines += [f"- {name}: `{value if isinstance(value, str) else json.dumps(value)}`" for name, value in given.items()]
    return [*lines, "", "## Read it", "", *_reading(store, levels)]


def _reading(store: StoreDescription, levels: list[Level]) -> list[str]:
    level = levels[0]
    name = store.features(level)[0].name
    lines = ["```python", "from datasets import load_dataset", "", f'rows = load_dataset("FOLDER", "{level}")["train"]']
    lines += ["```", "", "```python", "import bertfeat", "", 'store = bertfeat.open_store("FOLDER")']
    return [*lines, f'vectors = store.numpy("{level}", "{name}")', "```"]


def _model(store: StoreDescription) -> str:
    """Return the model's name; of a folder its last part, which says nothing about a machine."""
    facts = store.metadata
    name = str(facts["model"])
    is_path = name.startswith((".", "/", "~")) or Path(name).exists()
    return model_text({**facts, "model": Path(name).name if is_path else name})
