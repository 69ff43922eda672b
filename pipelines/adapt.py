"""Encoders trained further on plain text, or from random weights, by masked words.

    python -m bertfeat.pipelines.adapt --corpus texts.txt --model minilm -o adapted
    python -m bertfeat.pipelines.adapt --corpus texts.txt --from-scratch config.json -o small

Writes the folder model, result.json and the learning curve. The same command resumes a run that was killed.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from bertfeat.pipelines import _pretraining, _training
from bertfeat.pipelines._recipe import FILE, Result, recipe
from bertfeat.plots.charts import plot_lines
from bertfeat.plots.tables import text_table

_USUAL_LENGTH = 128
_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)


@recipe("accelerate", "matplotlib", extraction="format text_column document_column limit")
@click.option("--corpus", type=FILE, required=True, help="Any format of extract.")
@click.option("--model", help="Installed model package, folder, or hub id.")
@click.option("--from-scratch", type=FILE, help="A config.json: start from random weights.")
@click.option("--whole-words", is_flag=True, help="Mask whole words.")
@click.option("--max-length", type=click.IntRange(min=1), help="Tokens of a window.  [default: 128, or fewer]")
@click.option("--held-out", type=_SHARE, default=0.1, show_default=True, help="Share of the text to score on.")
@_training.training_options
def main(corpus: str, model: str | None, from_scratch: str | None, output: Path, **options: Any) -> Result:
    """Train an encoder on plain text, and write a folder that --model takes."""
    if (model is None) == (from_scratch is None):
        raise click.UsageError("pass --model, or --from-scratch with a config.json, and not both")
    whole_words, max_length, held_out = (options.pop(name) for name in ("whole_words", "max_length", "held_out"))
    reading = {name: options.pop(name) for name in ("text_column", "document_column", "format", "limit")}
    settings = _training.Settings(**options)
    parts = _pretraining.hold_out(_pretraining.read_texts(corpus, **reading), held_out)
    if from_scratch is not None:
        _pretraining.make_model(from_scratch, [*itertools.chain(*parts[0])], output / "start", seed=settings.seed)
    opened = _pretraining.open_masked_model(model or str(output / "start"), settings.seed)
    _training.check_model_place(opened, output / "model")
    longest = opened.checkpoint.max_length
    if max_length is not None and max_length > longest:
        raise click.UsageError(f"--max-length {max_length} is more than the {longest} tokens that the model takes")
    length = max_length or min(_USUAL_LENGTH, longest)
    windows, others = (_pretraining.cut_windows(part, opened.tokenizer, length) for part in parts)
    masking = _pretraining.Masking(opened.tokenizer, whole_words=whole_words)
    scored = masking.once(others)
    trainer = _training.make_trainer(
        opened.model,
        windows,
        settings,
        output,
        collator=masking,
        made_of=[opened.checkpoint.weights_sha256, whole_words, scored, [one["input_ids"].tolist() for one in windows]],
        dev=scored,
        score=lambda predicted: -_pretraining.scores_of(predicted)["loss"],
        judge=_pretraining.judge,
    )
    before = _pretraining.scores_of(trainer.predict(scored))
    history = _training.train(trainer)
    after = _pretraining.scores_of(trainer.predict(scored))
    _training.replace_model(opened, output / "model")
    curve: list[dict[str, float]] = [{"step": 0, "held_out_loss": before["loss"]}]
    for number, (score, loss) in enumerate(zip(history.scores, history.losses, strict=True), 1):
        curve.append({"step": history.step // history.epoch * number, "held_out_loss": -score, "loss": loss})
    lines = {"training, mean of the epoch": [(point["step"], point["loss"]) for point in curve[1:]]}
    lines["held out"] = [(point["step"], point["held_out_loss"]) for point in curve]
    plot_lines(lines, output / "curve", axis_names=("step", "loss"))
    ids = np.concatenate([window["input_ids"] for window in windows])
    guess = int(np.bincount(ids[~np.isin(ids, opened.tokenizer.all_special_ids)]).argmax())
    masked = [label for window in scored for label in window["labels"] if label >= 0]
    guessed = masked.count(guess) / len(masked)
    values = {
        "new_weights": opened.new_weights,
        "max_length": length,
        "n_documents": {"train": len(parts[0]), "held_out": len(parts[1])},
        "before": before,
        "after": after,
        "most_frequent_token": {"masked_accuracy": guessed},
        "training": asdict(history),
        "curve": curve,
    }
    rows = [("before", *before.values()), ("after", *after.values()), ("most frequent token", None, guessed)]
    return Result(values, text_table(["held-out documents", "loss", "masked words"], rows))


if __name__ == "__main__":
    main()
