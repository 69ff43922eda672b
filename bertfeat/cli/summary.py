"""Summaries of a store and of an estimate for the command line, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertfeat.choices import Level, Pooling
from bertfeat.cli.appends import append_entries, append_lines, unfinished_append
from bertfeat.cli.progress import counted, human_bytes, human_time
from bertfeat.display import model_text
from bertfeat.encoder.sentencemodel import UNSUPPORTED
from bertfeat.levels import LEVELS
from bertfeat.records import LevelSchema, Receipt
from bertfeat.store.manifest import IMPORTED
from bertfeat.store.storedescription import StoreDescription

if TYPE_CHECKING:
    from bertfeat.extraction.estimation import Estimate


# Poolings of several tokens, and their special tokens by whether they were included.
_COUNTING = (Pooling.MEAN, Pooling.MAX, Pooling.WEIGHTEDMEAN)
_TOKENS = {False: " without special tokens", True: " with special tokens"}
_LAID = {"array": "fixed-size lists", "binary": "fixed-size binary"}


def store_summary(store: StoreDescription) -> dict[str, Any]:
    """Return what is in a store as JSON values."""
    totals, receipts = store.manifest.totals, store.receipts()
    seconds: dict[str, float] = {}
    for receipt in receipts:
        for stage, value in receipt.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + value
    n_tokens, n_unknown = totals.counts.get("n_encoded_tokens", 0), totals.counts.get("n_unknown_tokens")
    n_tokens -= sum(receipt.notes.get("n_cached_tokens", 0) for receipt in receipts)
    return {
        "store": str(store.path),
        "complete": store.is_complete,
        "version": store.version,
        "levels": {str(level): _level(store, level) for level in store.levels},
        "n_documents": totals.counts.get("n_documents", 0),
        "n_tokens": totals.counts.get("n_tokens", 0),
        "n_truncated_tokens": totals.counts.get("n_truncated_tokens", 0),
        "n_windows": totals.counts.get("n_windows", 0),
        **({"n_unknown_tokens": n_unknown} if n_unknown is not None else {}),
        "n_bad_rows": totals.n_bad_rows,
        "n_empty_documents": sum(receipt.notes.get("n_empty_documents", 0) for receipt in receipts),
        "longest_document": _longest(totals.counts, receipts),
        "n_shards": totals.n_shards,
        "n_shards_planned": totals.n_shards if store.is_complete else len(store.plan.shards),
        "n_bytes": sum(totals.n_bytes.values()),
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "n_halvings": sum(receipt.notes.get("n_halvings", 0) for receipt in receipts),
        "n_cached_documents": sum(receipt.notes.get("n_cached_documents", 0) for receipt in receipts),
        "tokens_per_s": round(n_tokens / seconds["encode"], 1) if seconds.get("encode") else None,
        "appends": append_entries(store, receipts),
        "unfinished_append": unfinished_append(store),
        "metadata": store.metadata,
    }


def _longest(counts: Mapping[str, int], receipts: Sequence[Receipt]) -> dict[str, Any] | None:
    """Return the document that has most of the tokens; None if none has."""
    found = [receipt.notes for receipt in receipts if "n_longest" in receipt.notes]
    notes = max(found, key=lambda notes: notes["n_longest"], default={"n_longest": 0})
    # In a corpus of a few documents, it is seen at a glance.
    if counts.get("n_documents", 0) <= 10 or 2 * notes["n_longest"] <= counts.get("n_tokens", 0):
        return None
    n = notes["n_longest"]
    return {"number": notes["longest_document"], "n_tokens": n, "share": round(n / counts["n_tokens"], 4)}


def _level(store: StoreDescription, level: Level) -> dict[str, Any]:
    schema = store.schema(level)
    return {
        "n_rows": store.n_rows(level),
        "n_bytes": store.manifest.totals.n_bytes.get(level, 0),
        "columns": {column.name: column.type for column in schema.columns},
        "features": {feature.name: feature.dim for feature in schema.features},
    }


def result_line(
    store: StoreDescription, *, was_complete: bool, n_before: int | None = None, n_cached: int | None = None
) -> str:
    """Return one line on a finished store.

    Args:
        store: The store.
        was_complete: Whether there was nothing to do.
        n_before: After an append: how many appends the store had before.
        n_cached: With a cache: how many documents this run took from it.
    """
    summary = store_summary(store)
    rows = ", ".join(f"{info['n_rows']:,} {level} rows" for level, info in summary["levels"].items())
    rate = f", {summary['tokens_per_s']:,.0f} tokens/s" if summary["tokens_per_s"] else ""
    aside = f", {summary['n_bad_rows']:,} bad rows set aside" if summary["n_bad_rows"] else ""
    new = summary["appends"][n_before:]
    if was_complete:
        before = "already complete; nothing to do: "
    elif n_before is None:
        before = ""
    elif new:
        before = f"{counted(sum(append['n_documents'] for append in new), 'document')} appended: "
    else:
        before = "damaged shards repeated: "
    cached = "" if n_cached is None else f", {counted(n_cached, 'document')} from the cache"
    empty = f", {counted(summary['n_empty_documents'], 'document')} without a token" * (
        summary["n_empty_documents"] > 0
    )
    line = f"{store.path}: {before}{rows}, {human_bytes(summary['n_bytes'])}{rate}{cached}{aside}{empty}"
    if longest := summary["longest_document"]:
        line += f"; document {longest['number']:,} has {longest['share']:.0%} of the tokens"
    if "n_unknown_tokens" in summary:
        line += f"; {_unknown_line(summary, store)}"
    told = Level.SENTENCE in store.levels and IMPORTED not in store.metadata
    return f"{line}; pooled by {_pooled(store.metadata)}" if told else line


def _unknown_line(summary: dict[str, Any], store: StoreDescription) -> str:
    """Return how many words static vectors lacked, and their share."""
    n, n_all = summary["n_unknown_tokens"], summary["n_tokens"]
    what = "word" if "words" in store.metadata["attention"] else "token"
    zero = " (zeros at the word level)" if store.metadata.get("unknown_words") else ""
    return f"{n:,} of {counted(n_all, what)} ({n / max(n_all, 1):.1%}) have no vector{zero}"


def _pooled(meta: Mapping[str, Any]) -> str:
    """Return how sentence rows were made."""
    pooling, prompt = meta["pooling"], meta.get("prompt", "")
    after = f", after the prompt {prompt!r}" if prompt else ""
    if pooling == Pooling.MODEL:
        return f"{meta.get('sentence_model', pooling).replace('normalises', 'normalised')}{after}"
    tokens = _TOKENS[meta["include_special_tokens"]] if pooling in _COUNTING else ""
    return f"{pooling}{tokens}, not normalised{after}"


def _sentence_line(meta: Mapping[str, Any]) -> str:
    """Return how sentence rows were made, and how the model's authors make them."""
    # Imported vectors do not say it.
    asked, said, name = meta.get("sentence_model"), _pooled(meta), _short_name(meta)
    if asked == UNSUPPORTED:
        said += f"; {name} pools by {asked}"
    elif asked and meta["pooling"] != Pooling.MODEL:
        said += f"; {name} itself (--pooling model): {asked.replace('normalises', 'normalised')}"
    elif asked == "":
        said += f"; {name} names no pooling of its own"
    unused = _unused_prompts(meta)
    return f"{said}; without its prompts ({unused})" if unused else said


def sentence_tip(store: StoreDescription) -> str | None:
    """Return what the model was trained for, if sentence rows were made otherwise."""
    meta, tips = store.metadata, []
    if Level.SENTENCE in store.levels:
        if meta["pooling"] != Pooling.MODEL and meta.get("sentence_model", "") not in ("", UNSUPPORTED):
            tips.append(f"--pooling model stores the embedding that {_short_name(meta)} was trained for")
        if unused := _unused_prompts(meta):
            tips.append(f"--prompt-name puts one of the model's prompts before each text ({unused})")
    return f"Tip: for search, {', and '.join(tips)}." if tips else None


def _short_name(meta: Mapping[str, Any]) -> str:
    return str(meta["model"].rpartition("/")[2])


def _unused_prompts(meta: Mapping[str, Any]) -> str:
    """Return the names of the model's prompts, if none was used."""
    prompts = {} if meta.get("prompt") else meta.get("prompts", {})
    return ", ".join(name for name, text in prompts.items() if text)


def inspect_store(path: str) -> tuple[dict[str, Any], list[str]]:
    """Return what is in a store, also an unfinished one, as JSON values and as lines.

    Raises:
        StoreError: There is no store, or it is damaged.
    """
    store = StoreDescription.at(path, allow_incomplete=True)
    summary = store_summary(store)
    return summary, _inspect_lines(store, summary)


def _inspect_lines(store: StoreDescription, summary: dict[str, Any]) -> list[str]:
    meta = store.metadata
    versions = ", ".join(f"{name} {version}" for name, version in meta["versions"].items())
    lines = [f"{store.path}: {counted(summary['n_documents'], 'document')}"]
    if IMPORTED not in meta:
        lines[0] += f", {counted(summary['n_tokens'], 'token')}"
    if not summary["complete"]:
        lines.append(
            f"not complete: {summary['n_shards']:,} of {summary['n_shards_planned']:,} shards are done; "
            "run the command that made it again to finish it"
        )
    lines.append("")
    for level in store.levels:
        lines += _level_lines(store.schema(level), summary["levels"][str(level)])
    stored = (
        f"stored     {meta['store_dtype']} as {_LAID[meta['vector_encoding']]}, {human_bytes(summary['n_bytes'])}, "
        f"{counted(summary['n_shards'], 'shard')}"
    )
    if IMPORTED in meta:
        return [
            *lines,
            "",
            *_imported_lines(meta),
            stored,
            f"made by    {versions}",
            f"run        {_run_line(summary)}",
        ]
    lines += [
        "",
        f"model      {model_text(meta)} ({meta['family']})",
        f"size       {meta['n_layers']} layers, {meta['hidden_size']} wide",
        f"weights    sha256 {meta['weights_sha256']}",
        f"tokenizer  sha256 {meta['tokenizer_sha256']}",
        f"layers     {', '.join(map(str, meta['layers']))}"
        + (f"; combined: {', '.join(meta['combine'])}" if len(meta["layers"]) > 1 else ""),
        *_pooling_lines(store),
        *_window_lines(summary, meta),
        f"encoder    {meta['attention'] and meta['attention'] + ', '}{meta['compute_dtype']} on {meta['device_kind']}",
        stored,
        f"made by    {versions}",
        f"run        {_run_line(summary)}",
        *append_lines(summary["appends"], summary["unfinished_append"]),
    ]
    if "n_unknown_tokens" in summary:
        lines.append(f"unknown    {_unknown_line(summary, store)}")
    if summary["n_cached_documents"]:
        lines.append(f"cache      {counted(summary['n_cached_documents'], 'document')} came from a cache")
    if summary["n_truncated_tokens"]:
        lines.append(f"truncated  {summary['n_truncated_tokens']:,} tokens are lost to truncation")
    if summary["n_halvings"]:
        lines.append(f"memory     ran out {summary['n_halvings']:,} times; packs were halved (--max-batch-tokens)")
    if summary["n_bad_rows"]:
        lines.append(f"set aside  {summary['n_bad_rows']:,} rows that could not be read (Store.bad_rows)")
    return lines


def _window_lines(summary: dict[str, Any], meta: Mapping[str, Any]) -> list[str]:
    if "n_unknown_tokens" in summary:
        # Static vectors do not depend on the windows.
        return []
    context = ", with document context" if meta["document_context"] else ""
    return [
        f"windows    {summary['n_windows']:,} of up to {meta['max_length']} tokens, overlap {meta['stride']}{context}"
    ]


def _imported_lines(meta: dict[str, Any]) -> list[str]:
    vectors, *others = meta[IMPORTED]
    pooling = meta["word_pooling"] or meta["pooling"]
    return [
        f"vectors    imported from {vectors['file']} ({vectors['format']}, sha256 {vectors['sha256']})",
        *(f"rows       from {file['file']} ({file['format']}, sha256 {file['sha256']})" for file in others),
        f"model      {meta['model']}, not known to bertfeat: no new text can be encoded",
        f"layers     {', '.join(map(str, meta['layers']))}" + (f"; word pieces pooled by {pooling}" if pooling else ""),
    ]


def _pooling_lines(store: StoreDescription) -> list[str]:
    meta = store.metadata
    special = {Level.SENTENCE: ", special tokens included"} if meta["include_special_tokens"] else {}
    settings = [(level, LEVELS[level].pooling) for level in store.levels]
    pooled = [f"{level} {meta[setting]}{special.get(level, '')}" for level, setting in settings if setting]
    own = [f"sentences  {_sentence_line(meta)}"] if Level.SENTENCE in store.levels else []
    return [f"pooling    {', '.join(pooled)}", *own] if pooled else []


def _level_lines(schema: LevelSchema, info: dict[str, Any]) -> list[str]:
    features = ", ".join(f"{name}[{dim}]" for name, dim in info["features"].items())
    return [
        f"{schema.level!s:<10} {info['n_rows']:,} rows, {human_bytes(info['n_bytes'])}",
        f"           {', '.join(info['columns'])}",
        f"           {features}",
    ]


def _run_line(summary: dict[str, Any]) -> str:
    seconds = summary["seconds"]
    if not seconds:
        return "no times kept"
    stages = ", ".join(
        f"{stage} {human_time(value) if value >= 60 else f'{value:.1f} s'}" for stage, value in seconds.items()
    )
    rate = f"{summary['tokens_per_s']:,.0f} tokens/s in the encoder; " if summary["tokens_per_s"] else ""
    return f"{rate}{stages}"


def estimate_lines(estimate: Estimate) -> list[str]:
    """Return what `bertfeat extract --dry-run` prints."""
    about = "" if estimate.is_exact else "about "
    cached = estimate.n_cached_documents
    return [
        f"documents  {estimate.n_documents:,}"
        + (f" ({estimate.n_bad_rows:,} bad rows)" if estimate.n_bad_rows else ""),
        f"tokens     {about}{estimate.n_tokens:,} ({about}{estimate.n_encoded_tokens:,} through the encoder)",
        *(f"{level!s:<10} {about}{n_rows:,} rows" for level, n_rows in estimate.n_rows.items()),
        f"on disk    about {human_bytes(estimate.n_bytes)} in {counted(estimate.n_shards, 'shard')}",
        *([] if cached is None else [f"cache      {about}{counted(cached, 'document')} in it, which are not encoded"]),
        f"encoder    {estimate.compute_dtype}, windows of up to {estimate.max_length:,} tokens",
        f"time       {_about(estimate.seconds)} at {estimate.tokens_per_s:,.0f} tokens/s",
        *_bfloat16_lines(estimate),
    ]


def _about(seconds: float) -> str:
    return f"about {human_time(seconds)}" if seconds >= 1 else "less than 1 s"


def _bfloat16_lines(estimate: Estimate) -> list[str]:
    rate = estimate.bfloat16_tokens_per_s
    if rate is None or rate <= estimate.tokens_per_s:
        return []
    seconds = estimate.seconds * estimate.tokens_per_s / rate
    gain = rate / estimate.tokens_per_s
    return [f"bfloat16   {_about(seconds)} with --compute-dtype bfloat16, {gain:.1f} times as fast"]
