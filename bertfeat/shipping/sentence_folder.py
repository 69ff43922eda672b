"""A shipped probe as a model of sentence-transformers, whose embedding of a text is the scores of the labels."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from bertfeat.choices import Level, Pooling
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import checkpoint_errors, require
from bertfeat.shipping.linear_map import linear_layer
from bertfeat.shipping.transformers_folder import TEXTS, copy_tokenizer, load_cut, reasons_of_one_layer, require_scores

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

_POOLINGS = (Pooling.MEAN, Pooling.MAX, Pooling.CLS, Pooling.LASTTOKEN, Pooling.WEIGHTEDMEAN, Pooling.MODEL)


def reasons(probe: FittedProbe, _: Checkpoint) -> dict[str, bool]:
    """Return reasons why the target cannot express a probe, each the end of a sentence, and which are true."""
    spec = probe.spec
    is_max = spec.pooling == Pooling.MAX and not spec.include_special_tokens
    return reasons_of_one_layer(probe) | {
        f"sentence-transformers labels no {spec.level}, only texts": spec.level is not Level.SENTENCE,
        f"sentence-transformers has no pooling {spec.pooling}": spec.pooling not in _POOLINGS,
        "max of sentence-transformers counts special tokens (`include_special_tokens`)": is_max,
    }


def write(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the cut model, the pooling, and a dense layer for the scores, as modules."""
    require("sentence_transformers", what="`to='sentence-transformers'` needs")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as kinds

    (weight, bias), prompt = linear_layer(probe.probe), probe.spec.prompt
    with tempfile.TemporaryDirectory() as part, no_progress_bars():
        with checkpoint_errors(checkpoint.folder, "sentence-transformers does not load it"):
            modules = _modules(probe, checkpoint, Path(part), kinds)
            n_outputs, dim = weight.shape
            modules.append(kinds.Dense(dim, n_outputs, True, nn.Identity(), weight, bias))
            model = SentenceTransformer(
                modules=modules,
                device="cpu",
                prompts={"probe": prompt} if prompt else None,
                default_prompt_name="probe" if prompt else None,
            )
        model.max_seq_length = probe.spec.max_length
        require_scores(probe, checkpoint, [[model.encode([text], show_progress_bar=False) for text in TEXTS]])
        model.save_pretrained(str(folder), create_model_card=False)


def _modules(probe: FittedProbe, checkpoint: Checkpoint, part: Path, kinds: Any) -> list[Any]:
    """Return the modules that make the vector of a text; the cut model is written to the folder `part`."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    spec, model = probe.spec, load_cut(probe, checkpoint, AutoModel)
    if spec.pooling == Pooling.MODEL:
        modules: list[Any] = list(SentenceTransformer(str(checkpoint.folder), device="cpu", local_files_only=True))
        modules[0].auto_model.config.update({"id2label": model.config.id2label, "label2id": model.config.label2id})
        return modules
    model.save_pretrained(part)
    copy_tokenizer(probe, checkpoint, part)
    modules = [kinds.Transformer(str(part))]
    tokenizer = modules[0].tokenizer
    # Attention leaves out what is padded, whatever the token.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if spec.pooling == Pooling.MEAN and not spec.include_special_tokens:
        modules.append(_without_special_tokens(tokenizer, kinds))
    return [*modules, kinds.Pooling(model.config.hidden_size, str(spec.pooling))]


def _without_special_tokens(tokenizer: Any, kinds: Any) -> Any:
    """Return weights of tokens: 0 for the special ones that the tokenizer adds to a text, 1 for all others."""
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = {words[token]: 0.0 for token in tokenizer("")["input_ids"]}
    # The module looks words up in small letters too.
    return kinds.WordWeights(words, {**{word: 1.0 for word in words if word.lower() in special}, **special})
