"""The basis of `make test-cpus`: its settings take effect, each variable counts, and no numeric file is left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bertfeat.ann.library import faiss
from tests.support.cpus import (
    ONEDNN_NAMES,
    OPENBLAS_NAMES,
    SETTINGS,
    VARIABLES,
    features,
    numeric_files,
    openblas_kernels,
)
from tests.support.places import TESTS

pytestmark = pytest.mark.numeric

# Files that compare within a tolerance but need no other processor, under the reason.
ELSEWHERE = {
    "times, sizes and pictures": "benchmarks estimation reports factory progress",
    "counts and measures of exact numbers": "entities scores evaluation reliability",
    "whole runs over what other files compute; slow": "cli_search text_context embedding extending families_extract "
    "search levels probe_memory pairs pipelines pipelines_search fitting sweeps autoindex words_parity "
    "sentencemodel transformer mteb onnx",
}


def onednn_isa(capfd: pytest.CaptureFixture[str]) -> str:
    """Return the instruction set that oneDNN says it uses."""
    if not torch.backends.mkldnn.is_available():
        return ""
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON), torch.inference_mode():
        torch.nn.functional.linear(torch.ones(8, 8).to_mkldnn(), torch.ones(8, 8).to_mkldnn())
    # It prints this only once per process.
    found = re.search(r"cpu,isa:(.*)", capfd.readouterr().out)
    return found[1].strip() if found else ""


def test_the_settings_of_the_environment_take_effect(capfd: pytest.CaptureFixture[str]) -> None:
    kernels, isa = openblas_kernels(), onednn_isa(capfd)
    level, dispatched = faiss.SIMDConfig.get_level_name(), np._core._multiarray_umath.__cpu_dispatch__
    on = [name for name in dispatched if name in features()]
    with capfd.disabled():
        capability = torch.backends.cpu.get_cpu_capability()
        print(
            f"\nOpenBLAS {kernels}; NumPy {on}; faiss {level}; torch {capability}; oneDNN {isa or '(printed before)'}"
        )
    if wanted := os.environ.get("OPENBLAS_CORETYPE"):
        assert len(kernels) >= 2
        for package, kernel in kernels.items():
            assert kernel in OPENBLAS_NAMES.get(wanted, {wanted}), package
    if wanted := os.environ.get("ATEN_CPU_CAPABILITY"):
        assert capability == wanted.upper()
    if (wanted := os.environ.get("ONEDNN_MAX_CPU_ISA")) and isa:
        assert isa == ONEDNN_NAMES[wanted]
    if wanted := os.environ.get("FAISS_SIMD_LEVEL"):
        assert level == wanted
    assert not {*on} & {*os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()}


KERNEL = """
import os, threadpoolctl
from bertfeat.ann.library import faiss
found = [lib.get("architecture") for lib in threadpoolctl.threadpool_info() if "faiss" in lib["filepath"]]
print("OPENBLAS_CORETYPE" in os.environ, *filter(None, found))
"""


@pytest.mark.parametrize("without", ["", " ".join(SETTINGS[-1].numpy)], ids=["all instructions", "none"])
def test_faiss_gets_kernels_that_the_processor_can_run(without: str) -> None:
    names = [name for name in without.split() if name in features()]
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment["NPY_DISABLE_CPU_FEATURES"] = " ".join(names)
    done = subprocess.run([sys.executable, "-c", KERNEL], env=environment, capture_output=True, text=True, check=True)
    is_left, *kernels = done.stdout.split()
    assert is_left == "False"
    if kernels and not without and {"AVX2", "X86_V3"} & features():
        assert kernels[-1] == "Haswell"


def test_every_file_that_compares_within_a_tolerance_is_numeric_or_named_here() -> None:
    """A new file must run under every setting, or be listed above with the reason."""
    marked = {Path(path).name for path in numeric_files()}
    within = re.compile(r"assert_allclose|assert_close|\ballclose|pytest\.approx")
    files = {path.name for path in TESTS.rglob("test_*.py") if within.search(path.read_text("utf-8"))}
    named = {f"test_{name}.py" for names in ELSEWHERE.values() for name in names.split()}
    assert files - marked - named == set()
    assert {"test_transforms.py", "test_parity.py", "test_resume_kill.py"} <= marked
