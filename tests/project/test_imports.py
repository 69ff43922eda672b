"""The floors: imports go down only, heavy libraries stay where they belong, and `--help` loads none of them."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bertfeat
from tests.support.places import ROOT

PACKAGE = Path(bertfeat.__file__).parent
HEAVY = (
    "torch",
    "transformers",
    "faiss",
    "pyarrow",
    "polars",
    "numpy",
    "tokenizers",
    "huggingface_hub",
    "fsspec",
    "tqdm",
)

# From the ground up; a module may import from its own floor and from those below. Floors on one line are neighbours
# that do not know each other.
FLOORS = [
    ["_version", "errors", "display"],
    ["storage"],
    ["config", "settings"],
    ["records"],
    ["progress", "ragged", "devices", "memory", "levels", "finite", "moments", "nearest"],
    ["durable"],
    ["corpus", "text", "encoder"],
    ["store"],
    ["heads", "ann"],
    ["reports"],
    ["runners"],
    ["extraction"],
    ["probes", "search"],
    ["cli"],
    ["__main__"],
]
# The same inside the store: a module may import from the lines below its own.
STORE_FLOORS = [
    ["layout", "plain", "schema"],
    ["codec", "checks", "vectors", "objectlock", "rowmap"],
    ["folder", "lock", "runs", "partvectors"],
    ["localfolder", "objectfolder", "parts", "selection"],
    ["openfolder"],
    ["receipts"],
    ["manifest", "commit"],
    ["planfile"],
    ["opening", "reader"],
    ["writer", "verification", "rowmapwriter", "provenance"],
]
# Where the rule is looser than the floors: thin things that both sides need.
ALLOWED: set[tuple[str, str]] = set()
# library -> floors that may import it
HOMES = {
    "transformers": {"encoder", "text"},
    "huggingface_hub": {"encoder"},
    "safetensors": {"encoder", "heads", "ann"},
    "tokenizers": {"text"},
    "faiss": {"ann"},
    "pyarrow": {"store", "corpus", "cli"},
    # Probes and searches hand out and take in frames; what they know of Parquet is the store's.
    "polars": {"store", "corpus", "probes", "search", "cli"},
    # Which package fsspec loads for a URL is its own affair.
    "fsspec": {"storage"},
    "s3fs": set(),
    "gcsfs": set(),
    "pandas": set(),
    "sklearn": {"heads"},
    "matplotlib": {"reports"},
    "sentence_transformers": set(),
    "ray": {"runners"},
    "tqdm": {"progress"},
}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Return every name that a file imports (also inside functions, but not for type checkers alone)."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                visit(other)
            return
        if top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import; write the whole name"
            assert node.module
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def home_of(name: str, known: dict[str, Path]) -> str | None:
    """Return the module of this package that an imported name belongs to."""
    while name:
        if name in known:
            return name
        name = name.rpartition(".")[0]
    return None


def floor_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def level_of(floor: str) -> int:
    for level, floors in enumerate(FLOORS):
        if floor in floors:
            return level
    raise AssertionError(f"bertfeat/{floor} stands on no floor; add it to FLOORS")


def edges(*, top_level_only: bool) -> dict[str, set[str]]:
    known = modules()
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        homes = {home_of(name, known) for name in imports_of(path, top_level_only=top_level_only)}
        found[module] = {home for home in homes if home and home != module}
    return found


def upward(found: dict[str, set[str]]) -> list[str]:
    """Return the imports that do not go down."""
    wrong = []
    for module, targets in found.items():
        here = floor_of(module)
        for target in targets:
            there = floor_of(target)
            # The package itself, with its lazy names, stands over everything.
            if not here or there == here or (here, there) in ALLOWED:
                continue
            if not there or level_of(there) >= level_of(here):
                wrong.append(f"{module} imports {target}")
    return sorted(wrong)


def upward_in_store(found: dict[str, set[str]]) -> list[str]:
    """Return the imports between modules of the store that do not go down."""
    level = {f"bertfeat.store.{name}": n for n, names in enumerate(STORE_FLOORS) for name in names}
    inside = {module: targets for module, targets in found.items() if module.startswith("bertfeat.store.")}
    assert inside.keys() == level.keys(), "add the module to STORE_FLOORS"
    wrong = [(m, t) for m, targets in inside.items() for t in targets if t in level and level[t] >= level[m]]
    return sorted(f"{module} imports {target}" for module, target in wrong)


def circle(found: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle of imports, or nothing."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target in sorted(found.get(module, ())):
            if loop := walk(target, [*path, module]):
                return loop
        done.add(module)
        return []

    for module in sorted(found):
        if loop := walk(module, []):
            return loop
    return []


def test_every_module_stands_on_a_floor() -> None:
    floors = {floor_of(module) for module in modules()} - {""}
    assert {floor for floor in floors if level_of(floor) < 0} == set()
    assert len(modules()) > 50, "the package was not found"


def test_imports_go_down_only() -> None:
    assert upward(edges(top_level_only=False)) == []


def test_imports_inside_the_store_go_down_only() -> None:
    found = edges(top_level_only=False)
    assert upward_in_store(found) == []
    found["bertfeat.store.layout"].add("bertfeat.store.folder")
    assert upward_in_store(found) == ["bertfeat.store.layout imports bertfeat.store.folder"]


def test_no_circles() -> None:
    # A package's __init__ is run before its modules, but importing from a sibling module is no circle through it.
    found = edges(top_level_only=False)
    packages = {module for module, path in modules().items() if path.name == "__init__.py"}
    inside = {m: {t for t in targets if not (t in packages and m.startswith(t + "."))} for m, targets in found.items()}
    assert circle(inside) == []


def test_a_file_name_is_used_once() -> None:
    """A reader finds a module by its name, in a stack trace too; commands bear the names of what they run."""
    names = [path.name for path in modules().values() if path.name != "__init__.py" and path.parent.name != "cli"]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_the_checks_find_what_they_look_for() -> None:
    assert upward({"bertfeat.store.reader": {"bertfeat.runners.local"}}) == [
        "bertfeat.store.reader imports bertfeat.runners.local"
    ]
    assert upward({"bertfeat.corpus.shards": {"bertfeat.encoder.layers"}}) != []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    lazy = imports_of(PACKAGE / "text" / "tokenizer.py")
    assert any(name.split(".")[0] == "transformers" for name in lazy)
    assert "transformers.AutoTokenizer" not in imports_of(PACKAGE / "text" / "tokenizer.py", top_level_only=True)


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    users = {
        module
        for module, path in modules().items()
        if any(name.split(".")[0] == library for name in imports_of(path)) and floor_of(module) not in HOMES[library]
    }
    assert users == set()


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.splitlines() else set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["extract", "--help"], ["inspect", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
sys.argv = ["bertfeat", *{arguments!r}]
from bertfeat.cli import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
"""
    assert loaded_by(code) == set()


def test_import_bertfeat_loads_nothing_heavy() -> None:
    assert loaded_by("import bertfeat; bertfeat.__version__; bertfeat.ExtractConfig(); bertfeat.BertfeatError") == set()


def test_reading_a_store_loads_no_encoder() -> None:
    found = loaded_by("import bertfeat, bertfeat.cli.summary, bertfeat.store.verification; bertfeat.open_store")
    assert {"polars", "pyarrow"} <= found
    assert not found & {"torch", "transformers", "tokenizers"}


def test_a_run_on_this_machine_loads_no_ray(tmp_path: Path, tiny_folder: Path) -> None:
    """Importing ray.data registers types with Arrow for the whole process."""
    (tmp_path / "corpus.txt").write_text("the bank of the river\n")
    arguments = ["extract", str(tmp_path / "corpus.txt"), "-o", str(tmp_path / "s"), "--layers=-1"]
    arguments += ["--model", str(tiny_folder)]
    code = f"""
import sys
sys.argv = ["bertfeat", *{arguments!r}]
from bertfeat.cli import main
main()
assert "torch" in sys.modules
assert not [name for name in sys.modules if name.split(".")[0] == "ray"]
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)


def test_public_names() -> None:
    for name in bertfeat.__all__:
        assert getattr(bertfeat, name) is not None
    assert set(dir(bertfeat)) == set(bertfeat.__all__)
    with pytest.raises(AttributeError, match="no attribute 'extrakt'"):
        bertfeat.extrakt  # noqa: B018


ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_what_others_take_from_it(room: str) -> None:
    known = modules()
    package = importlib.import_module(f"bertfeat.{room}")
    named = package.__all__
    assert list(named) == sorted(set(named))
    for name in named:
        assert f"bertfeat.{room}.{name}" in known or getattr(package, name) is not None
    taken = {
        target.split(".")[2]
        for module, path in known.items()
        for name in imports_of(path)
        if (target := home_of(name, known) or "").startswith(f"bertfeat.{room}.") and floor_of(module) not in (room, "")
    }
    assert taken - set(named) == set(), f"add them to __all__ of bertfeat/{room}/__init__.py"


def private_imports(path: Path) -> list[str]:
    """Return what a script imports of the package beside the names and modules in `bertfeat.__all__`."""
    found = []
    for name in sorted(imports_of(path)):
        first, *steps = name.split(".")
        if first != "bertfeat":
            continue
        module: Any = bertfeat
        for step in steps:
            names = getattr(module, "__all__", None) or [known for known in vars(module) if not known.startswith("_")]
            if step not in names:
                found.append(name)
                break
            module = getattr(module, step, None) or importlib.import_module(f"{module.__name__}.{step}")
    return found


SCRIPTS = sorted([*(ROOT / "pipelines").glob("*.py"), *(ROOT / "examples").glob("*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_pipelines_and_examples_use_public_names_only(script: Path, tmp_path: Path) -> None:
    assert private_imports(script) == []
    named = set(re.findall(r"\bbertfeat\.(\w+)", script.read_text("utf-8").split('"""', 2)[2]))
    assert named - set(bertfeat.__all__) == set()
    lines = ["from bertfeat import extract", "from bertfeat.errors import UserError", "import bertfeat.errors"]
    lines += ["from bertfeat.ann.exact import exact_search", "from bertfeat.reports.plots import _STYLE"]
    (tmp_path / "script.py").write_text("\n".join(lines))
    assert private_imports(tmp_path / "script.py") == [
        "bertfeat.ann.exact.exact_search",
        "bertfeat.reports.plots._STYLE",
    ]
