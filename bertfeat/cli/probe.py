"""`bertfeat probe`: fit, score, apply and sweep classifiers on the features of a store."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from bertfeat.cli import options
from bertfeat.display import facts
from bertfeat.errors import BertfeatWarning
from bertfeat.heads.registry import HEADS, check_head

if TYPE_CHECKING:
    from bertfeat.probes.config import ProbeConfig
    from bertfeat.probes.fitted import FittedProbe

_LABELS = "in a .csv, .tsv, .jsonl or .parquet, joined by doc_id and word_index."
# Options of a fit and of a sweep that `--help` shows.
_COMMON = "output overwrite level label labels dev task head param class_weight seeds as_json"
# What the result of a fit shows.
_OF_A_FIT = (
    *("probe", "task", "told_by", "head", "params", "feature", "level", "label", "n_rows", "n_documents", "n_classes"),
    "n_without_label",
    *("n_without_vector", "streamed", "n_seeds_asked", "seeds", "seed", "scores", "fit_report", "unseen_labels"),
)
_OF_A_SHIPPED = ("target", "path", "model", "blocks", "n_bytes", "model_bytes", "labels")

_fit_options = options.together(
    options.value("Data", "--level", "LEVEL", "token, word, span or sentence.  [default: the only one stored]"),
    options.value("Data", "--label", "NAME", "Column with the labels.", "label"),
    options.value("Data", "--dev", "STORE", "Store to choose settings by, extracted like the first one."),
    options.value("Data", "--labels", "FILE", f"Labels {_LABELS}"),
    options.value("Data", "--dev-labels", "FILE", "The same for --dev."),
    options.count("Data", "--limit", None, "Learn from the first N documents.", least=1),
    options.size("Data", "--max-memory", None, "What does not fit is streamed.  [default: half of the free memory]"),
    options.value(
        "Data",
        "--task",
        "TASK",
        "classify, regress (numbers) or multilabel (lists of labels); auto: by column.",
        "auto",
    ),
    options.value("Head", "--head", "NAME", f"{', '.join(HEADS)}, mean.  [default: logreg; of numbers ridge]"),
    options.option("Head", "--param", metavar="NAME=VALUE", multiple=True, help="Parameter of the head."),
    options.value("Head", "--class-weight", "balanced", "Weight classes inversely to their frequency."),
    options.value("Head", "--metric", "NAME", "What dev is judged by: accuracy, macro_f1, entity_f1; of numbers r2."),
    options.count("Head", "--seeds", 1, "Fits of random heads.", least=1),
    options.count("Head", "--seed", 0, "The first seed."),
)


def _share_option(name: str, text: str, heading: str = "Data", default: float = 0.2) -> options.Option:
    return options.option(heading, name, type=float, metavar="SHARE", default=default, show_default=True, help=text)


@click.group(name="probe")
def probe() -> None:
    """Fit, score and apply classifiers on the features of a store.

    A probe remembers which model, layers and pooling its features came from: it refuses others, and labels raw text by
    extracting it with these settings.
    """


@probe.command(name="fit", cls=options.GroupedCommand, common=f"feature {_COMMON}")
@click.argument("store", metavar="STORE")
@options.writes("PROBE", "Folder of the probe.")
@options.value("Data", "--feature", "NAME", "Feature.  [default: the only one, or concat_last4]")
@options.value("Data", "--mix", "LAYERS", "Layers that a neural head weighs in a scalar mix: 9..12.")
@_fit_options
def fit(store: str, label: str, output: str, overwrite: bool, **settings: Any) -> options.Printed:
    """Fit a probe to the features of STORE and save it.

    Vectors that do not fit into memory are streamed from the store. A list of values for C, alpha or weight_decay is
    chosen from on --dev; so is the best of several seeds.

    \b
    Examples:
      bertfeat probe fit features -o intents --label intent --param C=0.01,0.1,1 --dev dev_features
      bertfeat probe fit features -o ner --level word --feature concat_last4 --head bilstm --dev dev_features --seeds 5
      bertfeat probe fit features -o ner --level word --mix 9..12 --head linear --dev dev_features
    """  # noqa: D301
    from bertfeat.heads.folder import PROBE_FOLDER

    PROBE_FOLDER.check(output, overwrite=overwrite)
    config = _config([store], settings)
    from bertfeat.probes.fitting import fit_probe
    from bertfeat.probes.sweep import MIX_CAUTION

    fitted = fit_probe(store, label, config, progress=options.watched())
    fitted.save(output, overwrite=overwrite)
    values = {"probe": output, **fitted.summary()}
    for said in values["fit_report"].get("warnings", []):
        warnings.warn(BertfeatWarning(said), stacklevel=1)
    named = {**values["spec"], **(values["dev"] or {}), **values}
    caution = f"\n\n{MIX_CAUTION}" if "mix" in values["fit_report"] else ""
    if values["told_by"]:
        named["told_by"] = f"{values['told_by']}; --task says otherwise"
    return options.Printed(values, facts(named, _OF_A_FIT) + caution)


@probe.command(name="score", cls=options.GroupedCommand, short_help="Score a probe on a labelled store.")
@click.argument("probe", metavar="PROBE")
@click.argument("store", metavar="STORE")
@options.value("Data", "--label", "NAME", "Column with the labels.  [default: that of the fit]")
@options.value("Data", "--labels", "FILE", f"Labels {_LABELS}")
@options.switch("Run", "--no-intervals", "No bootstrap intervals.")
@options.prints
def score(probe: str, store: str, label: str | None, labels: str | None, no_intervals: bool) -> options.Printed:
    """Score PROBE on the labels of STORE.

    Accuracy, macro F1, each class, entities where labels are tags such as B-PER, and bootstrap intervals.
    Labels that the probe has not seen, and rows without a vector, count as errors.
    """
    found = _loaded(probe, store).score(store, label=label, labels=labels, bootstrap=not no_intervals)
    return options.Printed({"probe": probe, "store": store, **found.to_dict()}, "\n".join(found.lines()))


@probe.command(name="compare", cls=options.GroupedCommand, short_help="Compare two probes on the same rows.")
@click.argument("first", metavar="PROBE")
@click.argument("second", metavar="PROBE")
@click.argument("store", metavar="STORE")
@click.argument("other_store", metavar="[STORE]", required=False)
@options.value("Data", "--label", "NAME", "Column with the labels.  [default: that of the fits]")
@options.value("Data", "--labels", "FILE", f"Labels {_LABELS}")
@options.value("Rows and columns", "--columns", "A,B", "Further columns, of the rows or documents.")
@options.count("Rows and columns", "--examples", 5, "Rows that only the first gets right, and only the second.")
@options.prints
def compare(
    first: str, second: str, store: str, other_store: str | None, examples: int, **settings: Any
) -> options.Printed:
    """Compare two probes on the labelled rows of STORE, each by its own feature.

    The difference of each score, the first minus the second, with a 95 % interval and p-value of a bootstrap over
    documents; how often the probes agree; which rows only one of them gets right. The second STORE is for the second
    probe, if it reads another model: the same documents. McNemar's test is for sentences alone: it ignores documents.

    \b
    Examples:
      bertfeat probe compare ner-linear ner-bilstm dev_features --columns label,text
      bertfeat probe compare intents intents-bert dev_features dev_bert_features
    """  # noqa: D301
    probes = _loaded(first, store), _loaded(second, other_store)
    from bertfeat.probes.comparison import compare_probes

    found = compare_probes(*probes, store, other_store, n_examples=examples, **settings)
    return options.Printed(found.to_dict(), "\n".join(found.lines()))


@probe.command(
    name="predict",
    cls=options.GroupedCommand,
    common="output overwrite columns errors label labels text_column id_column device",
)
@click.argument("probe", metavar="PROBE")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@options.writes("FILE", "File to write: .parquet or .csv.")
@options.value("Rows and columns", "--columns", "A,B", "Further columns, of the rows, documents or input; gold labels.")
@options.switch("Rows and columns", "--errors", "Only rows that differ from their gold label, most probable first.")
@options.value("Rows and columns", "--label", "NAME", "Column with the gold labels.  [default: that of the fit]")
@options.value("Rows and columns", "--labels", "FILE", f"Gold labels {_LABELS}")
@options.corpus_options
@options.value("Computing", "--device", "DEVICE", "Where text is encoded.", "auto")
def predict(probe: str, inputs: tuple[str, ...], output: str, overwrite: bool, **settings: Any) -> dict[str, Any]:
    """Label a corpus, or a store, and write Parquet or CSV.

    INPUT is a store's folder, or files as `bertfeat extract` reads them (- for standard input). Text is extracted with
    the probe's own settings: model, layers, pooling, window. The output has doc_id (at word level word_index and word,
    at token level token_index and token), the columns of --columns, prediction, and probability if the head has any;
    rows without a vector have neither. --errors writes only the rows that differ from their gold label: the most
    probable predictions first, rows without one last; only these errors are held in memory.

    \b
    Examples:
      bertfeat probe predict intents new.csv -o labelled.parquet --text-column body --id-column key
      bertfeat probe predict ner features -o tagged.parquet
      bertfeat probe predict intents test.csv -o wrong.csv --columns text --errors
    """  # noqa: D301
    from bertfeat.storage import as_path

    asked = {name: settings.pop(name) for name in ("columns", "errors", "label", "labels")}
    asked |= {"overwrite": overwrite, "progress": options.watched()}
    store = inputs[0] if len(inputs) == 1 and inputs[0] != "-" and as_path(inputs[0]).is_dir() else None
    if store is not None:
        options.refuse_given(settings, "is for reading text; INPUT is a store")
    fitted = _loaded(probe, store)
    from bertfeat.corpus import Paths

    given = {} if store else {name: one for name, one in settings.items() if one is not None}
    written = fitted.predict(store or Paths(inputs), output, **asked, **given)
    counts = {str(name): count for name, count in sorted(written.counts.items())}
    found = {"n_rows": written.n_rows, "n_without_prediction": written.n_without, "counts": counts}
    found |= {"n_bad_rows": written.n_set_aside, "n_gold": written.n_gold}
    return {"output": output, "probe": probe, "level": str(fitted.level), **found}


# --columns stands for this option of an extraction.
predict.params = [param for param in predict.params if param.name != "keep_columns"]


@probe.command(
    name="sweep", cls=options.GroupedCommand, common=f"features hold_out limits control baselines mdl {_COMMON}"
)
@click.argument("stores", metavar="STORE...", nargs=-1, required=True)
@options.writes("FOLDER", "Folder of the table and the plots.")
@options.value("Data", "--features", "A,B", "Features or layers; mix_last4 is a scalar mix.  [default: all]")
@_share_option("--hold-out", "Documents to score on.")
@options.value("Data", "--limits", "N,N,all", "Learning curve: fit on N documents, drawn at random.")
@_fit_options
@options.switch("Controls", "--control", "Score a control task too, a random label per word type; selectivity.")
@options.option(
    *("Controls", "--baseline", "baselines"),
    metavar="A,B",
    help="majority, type, random-weights=STORE; beside --dev also random-weights-dev=STORE.",
)
@options.switch("Controls", "--mdl", "Codelength of the labels of STORE, and their compression.")
def sweep(stores: tuple[str, ...], label: str, output: str, overwrite: bool, **settings: Any) -> options.Printed:
    """Fit and score a head on each layer of STORE and each combination of layers.

    One extraction with --layers all serves the whole sweep. Written are table.csv, result.json, plot.png and plot.svg.
    Without --dev, a share of the documents is held out. Several stores of the same documents put models side by side.
    --limits fits each feature on some of the documents: more of them include those of fewer.

    \b
    Examples:
      bertfeat probe sweep features -o layers --level word --label upos --dev dev_features
      bertfeat probe sweep features -o review --label upos --control --mdl --baseline majority,random-weights=random
      bertfeat probe sweep features -o layers --label intent --features layer_00,layer_06,mean_last4
      bertfeat probe sweep features bert-features -o models --label intent --limits 100,300,all
    """  # noqa: D301
    from bertfeat.probes.sweep import check_sweep_folder

    check_sweep_folder(output, overwrite=overwrite)
    config = _config(stores, settings)
    from bertfeat.probes.fitting import sweep_probes

    found = sweep_probes(stores, label, config, progress=options.watched())
    found.write(output, overwrite=overwrite)
    best = f"{output}: {found.best_line()}\n{found.reuse_line()}".rstrip()
    text = "\n\n".join([found.table(), *found.mix_lines(), best])
    return options.Printed({"output": output, **found.to_dict()}, text)


@probe.command(name="ship", cls=options.GroupedCommand, short_help="Write a probe as a model folder without bertfeat.")
@click.argument("probe", metavar="PROBE")
@options.writes("FOLDER", "Folder of the model.")
@options.value("Target", "--to", "LIBRARY", "transformers, sentence-transformers or onnx.", "transformers")
def ship(probe: str, output: str, overwrite: bool, to: str) -> options.Printed:
    """Write PROBE, with the blocks of its model that it needs, as a model folder that works without bertfeat.

    Standardization and weights of a linear head are folded into the folder's classifier. The folder is run on a
    few texts, and refused if it does not give the probe's scores.

    \b
    Examples:
      bertfeat probe ship ner -o ner-model
      bertfeat probe ship intents -o intent-model --to sentence-transformers
    """  # noqa: D301
    found = dataclasses.asdict(_loaded(probe).ship(output, to=to, overwrite=overwrite))
    shown = {"blocks": f"{found['n_blocks']} of {found['n_blocks_of_model']}", "model_bytes": found["n_bytes_of_model"]}
    return options.Printed({"probe": probe, **found}, facts(found | shown, _OF_A_SHIPPED))


@probe.command(
    name="slim", cls=options.GroupedCommand, common=f"features hold_out keep widths heads test_share {_COMMON}"
)
@click.argument("stores", metavar="STORE...", nargs=-1, required=True)
@options.writes("FOLDER", "Folder of the table, the plots and the probe.")
@_share_option("--keep", "Of the best score on dev.", "Choice", 0.98)
@options.value("Choice", "--widths", "N,N,full", "Principal axes for linear heads.  [default: full,128,64,32]")
@options.value("Choice", "--heads", "A,B", "Heads, the cheaper first.  [default: logreg; of numbers ridge]", "")
@_share_option("--test-share", "Documents that choose nothing.")
@options.value("Data", "--features", "A,B", "Features or layers.  [default: the single layers]")
@_share_option("--hold-out", "Documents to choose by, without --dev.")
@_fit_options
def slim(stores: tuple[str, ...], label: str, output: str, overwrite: bool, **settings: Any) -> options.Printed:
    """Find the smallest model and probe that keep a share of the best score.

    A table over layers, widths (principal axes, folded into the head) and heads, and over several STORES of the same
    documents, such as other poolings, with what each costs on this machine. The smallest choice that is good enough on
    dev is fitted and saved in FOLDER/probe; its score is also computed on documents that chose nothing.

    \b
    Examples:
      bertfeat probe slim features -o slim --label intent --dev dev_features
      bertfeat probe slim means firsts -o slim --label intent --keep 0.95 --heads logreg,mlp --widths full,16
    """  # noqa: D301
    chosen = {name: settings.pop(name) for name in ("keep", "widths", "heads", "test_share")}
    from bertfeat.probes.sweep import check_sweep_folder

    check_sweep_folder(output, overwrite=overwrite)
    config = _config(stores, settings)
    from bertfeat.probes.slim import slim_probe

    found = slim_probe(stores, label, config, **chosen, progress=options.watched())
    found.write(output, overwrite=overwrite)
    return options.Printed({"output": output, **found.to_dict()}, "\n".join([found.table(), "", *found.lines()]))


# --heads stands for this option.
slim.params = [param for param in slim.params if param.name != "head"]


def _config(stores: Sequence[str], settings: dict[str, Any]) -> ProbeConfig:
    """Return the settings of a fit or a sweep; report a wrong store, level or head before scikit-learn loads."""
    from bertfeat.store.description import StoreDescription

    params = head_params(settings)
    for store in stores:
        StoreDescription.at(store).choose_level(settings["level"])
    check_head(settings.get("head") or "logreg")
    from bertfeat.probes.config import ProbeConfig

    return ProbeConfig(params=params, **settings)


def _loaded(probe: str, store: str | None = None) -> FittedProbe:
    """Return a saved probe; report a wrong probe or store before scikit-learn loads, which takes a second."""
    from bertfeat.probes.description import describe_probe
    from bertfeat.store.description import StoreDescription

    describe_probe(probe)
    if store is not None:
        StoreDescription.at(store)
    from bertfeat.probes.fitted import load_probe

    return load_probe(probe)


def head_params(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the parameters of a head out of the values of the options: JSON, lists of it between commas, or words.

    Examples:
        >>> head_params({"param": ("C=0.1,1,10", "standardize=false"), "metric": "macro_f1", "class_weight": None})
        {'C': [0.1, 1, 10], 'standardize': False, 'metric': 'macro_f1'}
    """
    params: dict[str, Any] = {}
    items, others = settings.pop("param"), {name: settings.pop(name) for name in ("class_weight", "metric")}
    for item in items:
        name, _, text = (part.strip() for part in item.partition("="))
        name = name.replace("-", "_")
        if not name or not text:
            raise click.UsageError(f"--param {item!r} is not NAME=VALUE")
        if name in params or others.get(name) is not None:
            raise click.UsageError(f"parameter {name} is given twice")
        if name in settings:
            raise click.UsageError(f"--param {item!r}: not a parameter of a head; an option has that name")
        params[name] = _parsed(text)
    return params | {name: text for name, text in others.items() if text is not None}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return [_parsed(part.strip()) for part in text.split(",")] if "," in text else text
