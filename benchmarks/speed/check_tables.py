"""The checks without rivals as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertfeat.plots.tables import markdown_table


def check_tables(results: Mapping[str, Any]) -> list[str]:
    """Return a table for each check that is among the results."""
    makers = {"encoder": _encoder, "profile": _profile, "stages": _stages, "scaling": _scaling}
    return [make(results[name]) for name, make in makers.items() if name in results]


def _encoder(result: Mapping[str, Any]) -> str:
    shares = ("share_of_torch_mm", "share_of_best", "padding")
    rows = [
        [corpus, f"{found['tokens_per_s']:,.0f}", f"{found['gflops']:,.0f}", *(f"{found[key]:.0%}" for key in shares)]
        for corpus, found in result.items()
    ]
    heads = [
        "the encoder alone, on",
        "tokens/s",
        "GFLOP/s",
        "share of torch.mm",
        "share of the best product",
        "padding",
    ]
    return markdown_table(heads, rows)


def _profile(result: Mapping[str, Any]) -> str:
    rows = [
        [corpus, ", ".join(f"{name} {share:.0%}" for name, share in found.items())] for corpus, found in result.items()
    ]
    return markdown_table(["corpus", "the encoder's time by operator"], rows)


def _stages(result: Mapping[str, Any]) -> str:
    stages = ("prepare", "encode", "commit")
    rows = [
        [output, found["corpus"], *(f"{found[stage]['cpu_s']:.2f}" for stage in stages), *_shares(found)]
        for output, found in result.items()
    ]
    return markdown_table(
        ["CPU seconds of stages, output", "corpus", *stages, "commit's share", "of a plain write"], rows
    )


def _shares(found: Mapping[str, float]) -> list[str]:
    return [f"{found[name]:.1%}" for name in ("commit_share_of_cpu", "plain_share_of_cpu")]


def _scaling(result: Mapping[str, Any]) -> str:
    corpora = {name: found for name, found in result.items() if isinstance(found, dict)}
    rows = [
        [name, f"{found['n_tokens']:,}", f"{found['tokens_per_s']:,.0f}", f"{found['peak_mib']:,.0f}"]
        for name, found in corpora.items()
    ]
    rows.append(["ratio", "", f"{result['tokens_per_s_ratio']:.2f}", f"{result['peak_mib_ratio']:.2f}"])
    return markdown_table(["corpus", "tokens", "tokens/s", "peak memory, MiB"], rows)
