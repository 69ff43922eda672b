"""A model with random weights in place of its trained ones: the baseline of probes.

    python -m bertfeat.pipelines.random_weights minilm --seed 0 -o minilm-random
    bertfeat extract corpus.txt -o random --model ./minilm-random

The same seed gives the same folder. Dense layers of sentence-transformers are left out, with modules.json.
"""

from __future__ import annotations

from pathlib import Path

import click

import bertfeat
from bertfeat.pipelines._recipe import Result, recipe
from bertfeat.pipelines._training import initialize


@recipe(extraction="revision")
@click.argument("model", metavar="MODEL")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the weights.")
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), required=True, help="The new folder.")
@click.option("--overwrite", is_flag=True, help="Replace a model that a recipe made.")
def main(model: str, seed: int, revision: str | None, target: Path, overwrite: bool) -> Result:
    """Write a folder for --model with the config and tokenizer of MODEL, and with random weights."""
    if target.exists() and not overwrite:
        raise bertfeat.errors.ConfigError(f"{target}: is there already; choose another --output, or pass --overwrite")
    initialize(model, revision, target, seed=seed)
    return Result({}, f"{target}: {model} with random weights of seed {seed}")


if __name__ == "__main__":
    main()
