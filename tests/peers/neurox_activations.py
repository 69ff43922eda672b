"""Read a file of activations with NeuroX' loader: `python neurox_activations.py FILE OUT.npy`.

It runs in an environment that has NeuroX. OUT.npy has the sentences one below the other, layers side by side; its
length per sentence and the number of layers are printed as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

import numpy as np


def main(path: str, out: str) -> None:
    from neurox.data.loader import load_activations

    with contextlib.redirect_stdout(io.StringIO()):
        sentences, n_layers = load_activations(path)
    np.save(out, np.concatenate(sentences).astype(np.float64))
    print(json.dumps({"lengths": [len(sentence) for sentence in sentences], "n_layers": n_layers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
