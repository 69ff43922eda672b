"""The checks without rivals as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_tables(results: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table for each check that is among the results."""
    makers = {"encoder": _encoder, "profile": _profile, "stages": _stages, "scaling": _scaling}
    lines = [line for name, make in makers.items() if name in results for line in ["", *make(results[name])]]
    limits = {name: result["limits"] for name, result in results.items() if "limits" in result}
    return [*lines, *(["", *_limits(limits)] if limits else [])]


def _encoder(result: Mapping[str, Any]) -> list[str]:
    lines = [
        "| the encoder alone, on | tokens/s | GFLOP/s | share of torch.mm | share of the best product | padding |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for corpus, found in _named(result):
        shares = " | ".join(f"{found[key]:.0%}" for key in ("share_of_torch_mm", "share_of_best", "padding"))
        lines.append(f"| {corpus} | {found['tokens_per_s']:,.0f} | {found['gflops']:,.0f} | {shares} |")
    return lines


def _profile(result: Mapping[str, Any]) -> list[str]:
    lines = ["| corpus | the encoder's time by operator |", "|---|---|"]
    for corpus, found in _named(result):
        lines.append(f"| {corpus} | {', '.join(f'{name} {share:.0%}' for name, share in found.items())} |")
    return lines


def _limits(limits: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(next(iter(limits.values())))
    lines = [f"| limit | {' | '.join(limits)} |", "|---" * (len(limits) + 1) + "|"]
    for name in names:
        is_share = name.startswith("share") or name == "gpu_busy"
        cells = [f"{found[name]:.0%}" if is_share else f"{found[name]:,.2f}" for found in limits.values()]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    return lines


def _stages(result: Mapping[str, Any]) -> list[str]:
    lines = [
        "| CPU seconds of stages, output | corpus | prepare | encode | commit | commit's share | of a plain write |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for output, found in _named(result):
        seconds = " | ".join(f"{found[stage]['cpu_s']:.2f}" for stage in ("prepare", "encode", "commit"))
        shares = f"{found['commit_share_of_cpu']:.1%} | {found['plain_share_of_cpu']:.1%}"
        lines.append(f"| {output} | {found['corpus']} | {seconds} | {shares} |")
    return lines


def _scaling(result: Mapping[str, Any]) -> list[str]:
    lines = ["| corpus | tokens | tokens/s | peak memory, MiB |", "|---|---:|---:|---:|"]
    for name, found in _named(result):
        lines.append(f"| {name} | {found['n_tokens']:,} | {found['tokens_per_s']:,.0f} | {found['peak_mib']:,.0f} |")
    return [*lines, f"| ratio | | {result['tokens_per_s_ratio']:.2f} | {result['peak_mib_ratio']:.2f} |"]


def _named(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, found) for name, found in result.items() if isinstance(found, dict)]
