"""List of the recipes, printed by `python -m bertfeat.pipelines`."""

from __future__ import annotations

import ast
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """List the recipes. Run one with: python -m bertfeat.pipelines.NAME."""
    click.echo("Run a recipe, or see its options: python -m bertfeat.pipelines.NAME --help\n")
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        click.echo(f"{path.stem:<20} {text.partition(chr(10))[0]}")


if __name__ == "__main__":
    main()
