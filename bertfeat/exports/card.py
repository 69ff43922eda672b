"""Card of a store for a hub of data sets: its levels as configurations, its provenance, and how to read it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from huggingface_hub import DatasetCard, DatasetCardData

from bertfeat.choices import Level
from bertfeat.display import model_text, printable
from bertfeat.errors import UserError
from bertfeat.storage import ObjectPath
from bertfeat.store.description import StoreDescription

# The hub's categories of sizes: below a thousand rows, then one for each power of ten.
_SIZES = (
    *("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B"),
    *("1B<n<10B", "10B<n<100B", "100B<n<1T", "n>1T"),
)
_ROW_OF = dict(zip(Level, ("a sub-word token", "a word", "a span of characters", "a whole document"), strict=True))
_SETTINGS = (
    *("family", "layers", "combine", "pooling", "word_pooling", "prompt", "include_special_tokens"),
    *("span_pooling", "span_pair", "chunk", "chunk_context"),
    *("document_context", "max_length", "stride", "store_dtype"),
    *("weights_sha256", "tokenizer_sha256", "versions", "plan_hash"),
)


def dataset_card(store: str | Path | ObjectPath | StoreDescription, *, license: str | None = None) -> str:  # noqa: A002
    """Return the card of a store as Markdown, for README.md in the store's folder.

    Args:
        store: A finished store, its folder or its URL.
        license: The license of the texts and the model, such as `cc-by-4.0`; nothing is said without it.

    Raises:
        UserError: The store has no rows.
        StoreError: There is no finished store.
    """
    opened = store if isinstance(store, StoreDescription) else StoreDescription.at(store)
    levels = [level for level in opened.levels if opened.n_rows(level)]
    if not levels:
        raise UserError(f"{opened.path}: has no rows; there is nothing to describe")
    most = max(opened.n_rows(level) for level in levels)
    default = Level.SENTENCE if Level.SENTENCE in levels else levels[0]
    head = DatasetCardData(
        pretty_name=f"Features of {printable(model_name(opened))}",
        license=None if license is None else printable(license),
        tags=["bertfeat", "embeddings", "feature-extraction", "hidden-states"],
        task_categories=["feature-extraction"],
        size_categories=[_SIZES[min(max(len(str(most)) - 3, 0), len(_SIZES) - 1)]],
        configs=[
            {"config_name": str(level), "data_files": [{"split": "train", "path": f"{level}/*.parquet"}]}
            | ({"default": True} if level is default else {})
            for level in levels
        ],
    )
    given = {"model": model_name(opened)} | {name: opened.metadata.get(name) for name in _SETTINGS}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items() if value}
    template = Path(__file__).with_name("card.md").read_text("utf-8")
    card = template.format(
        head=head.to_yaml(),
        model=_code(model_name(opened)),
        link=_link(opened),
        levels="\n".join(_level_line(opened, level) for level in levels),
        level=levels[0],
        feature=json.dumps(opened.features(levels[0])[0].name),
        settings="\n".join(f"- {name}: {_code(text)}" for name, text in texts.items()),
    )
    return str(DatasetCard(card))


def _level_line(store: StoreDescription, level: Level) -> str:
    schema = store.schema(level)
    n_bytes = sum(part.n_bytes for part in store.parts(level))
    vectors = ", ".join(f"{_code(feature.name)} ({feature.dim})" for feature in schema.features)
    columns = ", ".join(_code(column.name) for column in schema.columns)
    cells = (level, _ROW_OF[level], f"{store.n_rows(level):,}", f"{n_bytes:,}", vectors, columns)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def model_name(store: StoreDescription) -> str:
    """Return the model's name; of a path its last part, which says nothing about a machine."""
    name = str(store.metadata["model"])
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return model_text({**store.metadata, "model": Path(name).name if is_path else name})


def _link(store: StoreDescription) -> str:
    """Return a sentence with a link to the model; nothing if it is not from the hub, whose models have a revision."""
    name = str(store.metadata["model"])
    is_id = store.metadata.get("revision") and re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", name)
    return f" Their model is [{name}](https://huggingface.co/{name})." if is_id else ""


def _code(text: str) -> str:
    """Return a text of one line as Markdown's code, which a backtick would end."""
    return f"`{printable(text).replace('`', chr(39))}`"
