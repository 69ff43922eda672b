"""Summaries of an index for the command line, as text and as JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.ann.description import INDEX, IndexDescription
from bertfeat.ann.indexfolder import read_description
from bertfeat.cli.progress import counted, human_bytes, human_time
from bertfeat.display import model_text
from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import standing
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
    summary = _summary(folder, description, Origin.from_json(description.source, folder))
    return summary, _info_lines(summary)


def index_summary(index: Index) -> dict[str, Any]:
    """Return the description of an open index as JSON values."""
    return _summary(index.path, index.description, index.origin)


def _summary(path: Path, description: IndexDescription, origin: Origin) -> dict[str, Any]:
    spec = origin.spec
    n_bytes = description.files[INDEX].n_bytes
    return {
        "index": str(path),
        "n_vectors": description.n_vectors,
        "dim": description.dim,
        "index_dim": description.index_dim,
        "level": str(spec.level),
        "feature": spec.feature,
        "metric": str(description.metric),
        "transform": str(description.transform),
        "factory": description.factory,
        "parameters": dict(description.parameters),
        "recall_at_10": description.measured.get("recall_at_10"),
        "tuned_by": None if origin.tuned_by is None else dataclasses.asdict(origin.tuned_by),
        "n_bytes": n_bytes,
        "bytes_per_vector": round(n_bytes / max(description.n_vectors, 1), 2),
        "build_s": round(sum(description.seconds.values()), 3),
        "store": origin.store,
        "model": spec.model,
        "settings": dict(description.settings),
        "measured": dict(description.measured),
        "seconds": dict(description.seconds),
        "spec": spec.to_dict(),
        "plan_hash": origin.plan_hash,
        "rows_digest": origin.rows_digest,
        "files": {name: found.digest for name, found in description.files.items()},
    }


def result_line(index: Index, before: str) -> str:
    """Return one line on an index."""
    summary = index_summary(index)
    return f"{index.path}: {before}{_what(summary)}, {human_bytes(summary['n_bytes'])}{_recall(summary)}"


def _info_lines(summary: dict[str, Any]) -> list[str]:
    spec, settings = summary["spec"], summary["settings"]
    parameters = ", ".join(f"{name} {value:g}" for name, value in summary["parameters"].items())
    shrunk = "" if summary["index_dim"] == summary["dim"] else f" to {summary['index_dim']} dimensions"
    pooled = f", pooled by {spec['pooling']}" if spec["pooling"] else ""
    layers = f"layers {', '.join(map(str, spec['layers']))}"
    return [
        f"{summary['index']}: {_what(summary)}",
        "",
        f"rows       level {summary['level']}, {summary['feature']} of {summary['store']}",
        f"model      {model_text(spec)} ({spec['family']}), {layers}{pooled}",
        f"compared   by {summary['metric']}, transform {summary['transform']}{shrunk}",
        f"index      {summary['factory']}" + (f", searched with {parameters}" if parameters else ""),
        f"size       {human_bytes(summary['n_bytes'])}, {summary['bytes_per_vector']:g} bytes per vector",
        f"settings   {_asked(settings)}",
        f"measured   {_recall(summary).removeprefix(', ') or 'nothing: too few vectors'}{_speed(summary)}",
        f"built in   {human_time(summary['build_s'])}",
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
        tuned_by = result["tuned_by"]
        of = f"of {tuned_by['n_queries']:,} queries of {tuned_by['name']}" if tuned_by else "given queries"
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


def _what(summary: dict[str, Any]) -> str:
    vectors = f"{counted(summary['n_vectors'], 'vector')} of {summary['dim']} dimensions"
    return f"{vectors}, {summary['factory']}, {summary['metric']}, transform {summary['transform']}"


def _recall(summary: dict[str, Any]) -> str:
    recall, measured = summary["recall_at_10"], summary["measured"]
    if recall is None:
        return ""
    missed = "" if measured.get("target_met") else f", short of {summary['settings']['recall']:g}"
    if given := measured.get("given"):
        of = f"for queries of {summary['tuned_by']['name']}" if summary["tuned_by"] else "for given queries"
        return f", recall@10 {given['recall_at_10']:.4f} {of}{missed}, {recall:.4f} for its own vectors"
    return f", recall@10 {recall:.4f}{missed}"


def _speed(summary: dict[str, Any]) -> str:
    measured = summary["measured"]
    if given := measured.get("given"):
        return f"; {given['n_queries']:,} of the queries did not tune it, {given['queries_per_s']:,.0f} queries/s"
    if None in (measured.get("queries_per_s"), measured.get("n_queries")):
        return ""
    return f" on {measured['n_queries']:,} queries that it was not tuned on, {measured['queries_per_s']:,.0f} queries/s"


def _asked(settings: dict[str, Any]) -> str:
    memory = human_bytes(settings["max_memory_bytes"])
    return f"index {settings['index']}, recall {settings['recall']:g}, memory {memory}, seed {settings['seed']}"
