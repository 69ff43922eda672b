"""Settings that make the libraries compute as on other processors, and a run of the numeric tests under each setting.

    make test-cpus

NumPy's, SciPy's and faiss's OpenBLAS, NumPy's and faiss's own loops, torch's kernels and oneDNN each choose an
instruction set when they are loaded, so each setting has a separate process. Together the settings take every value of
promise 21, in combinations that real machines have; `make test` has those of this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.places import TESTS

MARKER = "numeric"
IN_PARALLEL = ("--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal")
VARIABLES = (
    "OPENBLAS_CORETYPE",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "FAISS_SIMD_LEVEL",
    "NPY_DISABLE_CPU_FEATURES",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Variables of the environment, and the instructions (as NumPy calls them) that a processor needs to run them."""

    name: str
    needs: tuple[str, ...] = ()
    openblas: str = ""
    torch: str = ""
    onednn: str = ""
    faiss: str = ""
    numpy: tuple[str, ...] = ()  # instruction sets that NumPy does without

    def variables(self, features: set[str]) -> dict[str, str]:
        """Return the variables; NumPy warns of instructions that the processor lacks anyway."""
        without = " ".join(name for name in self.numpy if name in features)
        values = (self.openblas, self.torch, self.onednn, self.faiss, without)
        return {name: value for name, value in zip(VARIABLES, values, strict=True) if value}


_AVX512 = ("X86_V4", "AVX512_ICL", "AVX512_SPR")
_AVX2_MACHINE = {"torch": "avx2", "onednn": "AVX2", "faiss": "AVX2", "numpy": _AVX512}
SETTINGS = (
    Setting("Haswell", ("AVX2", "FMA3"), "Haswell", **_AVX2_MACHINE),
    Setting("Zen", ("AVX2", "FMA3"), "Zen", **_AVX2_MACHINE),
    Setting("SkylakeX", ("AVX512_SKX",), "SkylakeX"),
    Setting("Prescott", ("SSE41",), "Prescott", "default", "SSE41", "NONE", ("X86_V3", *_AVX512)),
)
# A build of OpenBLAS that lacks a kernel uses a lower one: the names that it may then report.
OPENBLAS_NAMES = {"Zen": {"Zen", "Haswell"}, "Prescott": {"Prescott", "Katmai"}}
ONEDNN_NAMES = {"SSE41": "Intel SSE4.1", "AVX2": "Intel AVX2"}


def features() -> set[str]:
    """Return the instruction sets of this processor that NumPy knows."""
    from numpy._core._multiarray_umath import __cpu_features__

    return {name for name, is_there in __cpu_features__.items() if is_there}


def openblas_kernels() -> dict[str, str]:
    """Return the kernel of each OpenBLAS in this process, by the package that contains it."""
    import scipy.linalg  # noqa: F401
    import threadpoolctl

    from bertfeat.ann.library import faiss  # noqa: F401

    found = [lib for lib in threadpoolctl.threadpool_info() if lib["internal_api"] == "openblas"]
    return {Path(lib["filepath"]).parent.name: lib["architecture"] for lib in found}


def numeric_files() -> list[str]:
    """Return the files with the marker: collecting the others would only take time."""
    paths = sorted(TESTS.rglob("test_*.py"), key=lambda path: (path.name != "test_cpus.py", path.name))
    return [str(path) for path in paths if f"mark.{MARKER}" in path.read_text(encoding="utf-8")]


def main() -> int:
    """Run the numeric tests under each setting that this processor can run; return 1 if one fails."""
    there, failed = features(), []
    for setting in SETTINGS:
        missing = [name for name in setting.needs if name not in there]
        if missing:
            print(f"== {setting.name}: skipped, this processor has no {', '.join(missing)}", flush=True)
            continue
        variables = setting.variables(there)
        print(f"== {setting.name}: " + " ".join(f"{name}={value!r}" for name, value in variables.items()), flush=True)
        # The caller's settings must not change these.
        plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        started = time.monotonic()
        marks = f"{MARKER} and not long and not gpu and not ray and not peer"
        first, *others = numeric_files()
        # The first file prints the settings in effect, which the processes of xdist do not show.
        for files in ([first], [*others, *IN_PARALLEL])[: 1 + bool(others)]:
            command = [sys.executable, "-m", "pytest", "-q", "-m", marks, *files]
            if subprocess.run(command, env={**plain, **variables}, check=False).returncode:
                failed.append(setting.name)
                break
        print(f"== {setting.name}: {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        print(f"failed under {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
