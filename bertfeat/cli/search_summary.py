"""Summaries of an index for the command line, as text and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.ann.description import INDEX, IndexDescription
from bertfeat.ann.indexfolder import read_description
from bertfeat.cli.progress import counted, human_bytes, human_time
from bertfeat.display import model_text
from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import standing
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.search.origin import Origin
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from bertfeat.search.index import Index


@os_errors(UserError)
def inspect_index(path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the description of an index as JSON values and as lines; its other files are not read.

    Raises:
        UserError: There is no index, or its description is damaged.
    """
    folder = local_path(path, "an index")
    description = read_description(standing(folder))
    origin = Origin.at(description)
    return _summary(folder, description, origin), _info_lines(folder, description, origin)


def index_summary(index: Index) -> dict[str, Any]:
    """Return the description of an open index as JSON values."""
    return _summary(index.path, index.description, index.origin)


def _summary(path: Path, description: IndexDescription, origin: Origin) -> dict[str, Any]:
    n_bytes = description.files[INDEX].n_bytes
    facts = {
        "index": str(path),
        **to_values(description),
        **to_values(origin),
        "index_dim": description.index_dim,
        "level": str(origin.spec.level),
        "feature": origin.spec.feature,
        "model": origin.spec.model,
        "recall_at_10": description.measured.get("recall_at_10"),
        "n_bytes": n_bytes,
        "bytes_per_vector": round(n_bytes / max(description.n_vectors, 1), 2),
        "build_s": round(sum(description.seconds.values()), 3),
    }
    # The fields of the origin are in the summary itself.
    del facts["source"]
    return facts


def result_line(index: Index, before: str) -> str:
    """Return one line on an index."""
    about = index.description
    size = human_bytes(about.files[INDEX].n_bytes)
    return f"{index.path}: {before}{_what(about)}, {size}{_recall(about, index.origin)}"


def _info_lines(path: Path, about: IndexDescription, origin: Origin) -> list[str]:
    spec, settings, n_bytes = origin.spec, about.settings, about.files[INDEX].n_bytes
    parameters = ", ".join(f"{name} {value:g}" for name, value in about.parameters.items())
    shrunk = "" if about.index_dim == about.dim else f" to {about.index_dim} dimensions"
    pooled = f", pooled by {spec.pooling}" if spec.pooling else ""
    layers = f"layers {', '.join(map(str, spec.layers))}"
    memory = human_bytes(settings.max_memory_bytes)
    return [
        f"{path}: {_what(about)}",
        "",
        f"rows       level {spec.level}, {spec.feature} of {origin.store}",
        f"model      {model_text(to_values(spec))} ({spec.family}), {layers}{pooled}",
        f"compared   by {about.metric}, transform {about.transform}{shrunk}",
        f"index      {about.factory}" + (f", searched with {parameters}" if parameters else ""),
        f"size       {human_bytes(n_bytes)}, {round(n_bytes / max(about.n_vectors, 1), 2):g} bytes per vector",
        f"settings   index {settings.index}, recall {settings.recall:g}, memory {memory}, seed {settings.seed}",
        f"measured   {_recall(about, origin).removeprefix(', ') or 'nothing: too few vectors'}{_speed(about)}",
        f"built in   {human_time(sum(about.seconds.values()))}",
    ]


def eval_lines(result: dict[str, Any]) -> list[str]:
    """Return what `bertfeat index eval` prints: first the measures of a retrieval set, if there is one."""
    lines = []
    if found := result.get("retrieval"):
        missing = f", {found['n_missing']:,} judged ones are not in the file" if found["n_missing"] else ""
        lines += [f"{result['index']}: {found['n_queries']:,} judged queries{missing}"]
        lines += [f"{name:<17}{found[name]:.4f}" for name in ("ndcg@10", "mrr@10", "recall@100")]
        lines += ["", f"against exact search: {result['n_queries']:,} vectors as queries, each without itself"]
    else:
        lines += [f"{result['index']}: {result['n_queries']:,} vectors as queries, each without itself"]
    lines += _recall_lines(result, result["factory"])
    if given := result.get("given"):
        of = f"of {result['tuned_by']['n_queries']:,} queries of {result['tuned_by']['name']}"
        lines += ["", f"{given['n_queries']:,} {of}, not tuned on", *_recall_lines(given, result["factory"]), ""]
    return [
        *lines,
        f"{'bytes per vector':<17}{result['bytes_per_vector']:g}",
        f"{'build time':<17}{human_time(result['build_s'])}",
    ]


def _recall_lines(measured: dict[str, Any], factory: str) -> list[str]:
    """Return the recall and the speed for some queries."""
    recalls = {name: measured[name] for name in ("recall@1", "recall@10", "recall@100")}
    if factory == "Flat" and set(recalls.values()) <= {1.0, None}:
        lines = [f"{'recall':<17}1.0000: Flat searches exactly"]
    else:
        lines = [f"{name:<17}{'too few vectors' if v is None else f'{v:.4f}'}" for name, v in recalls.items()]
    single = f"{measured['ms_per_query']:.3g} ms for a single query"
    return [*lines, f"{'queries/s':<17}{measured['queries_per_s']:,.0f} in a batch; {single}"]


def _what(about: IndexDescription) -> str:
    vectors = f"{counted(about.n_vectors, 'vector')} of {about.dim} dimensions"
    return f"{vectors}, {about.factory}, {about.metric}, transform {about.transform}"


def _recall(about: IndexDescription, origin: Origin) -> str:
    measured = about.measured
    recall = measured.get("recall_at_10")
    if recall is None:
        return ""
    missed = "" if measured.get("target_met") else f", short of {about.settings.recall:g}"
    if origin.tuned_by:
        of = f"for queries of {origin.tuned_by.name}{missed}"
        return f", recall@10 {measured['given']['recall_at_10']:.4f} {of}, {recall:.4f} for its own vectors"
    return f", recall@10 {recall:.4f}{missed}"


def _speed(about: IndexDescription) -> str:
    measured = about.measured
    if given := measured.get("given"):
        return f"; {given['n_queries']:,} of the queries did not tune it, {given['queries_per_s']:,.0f} queries/s"
    if "queries_per_s" not in measured:
        return ""
    return f" on {measured['n_queries']:,} queries that it was not tuned on, {measured['queries_per_s']:,.0f} queries/s"
