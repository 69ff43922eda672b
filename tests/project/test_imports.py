"""The floors: imports go down only, heavy libraries stay where they belong, and `--help` loads none of them."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bertfeat
from tests.support.command_line import commands
from tests.support.places import ROOT

PACKAGE = Path(bertfeat.__file__).parent
HEAVY = "torch transformers faiss pyarrow polars numpy tokenizers huggingface_hub fsspec tqdm"
# For a new process: runs a command, which must succeed.
MAIN = """
import sys
from bertfeat.cli import main

def run(*words):
    sys.argv = ["bertfeat", *words]
    try:
        main()
    except SystemExit as done:
        assert not done.code, (words, done.code)
"""

# From the ground up: a module may import from its own floor and from floors on earlier lines, not from other floors on
# its line.
FLOORS = [
    ["_version", "errors", "display"],
    ["lazy_names", "extensions"],
    ["choices"],
    ["storage", "memory"],
    ["config", "settings", "forks", "process_end"],
    ["records"],
    ["progress", "ragged", "devices", "levels", "finite"],
    ["durable"],
    ["corpus", "text", "encoder"],
    ["store"],
    ["vectors"],
    ["heads", "ann", "exports"],
    ["plots"],
    ["runners"],
    ["extraction"],
    ["layers", "probes", "search"],
    ["audits", "map", "serve", "shipping"],
    ["cli"],
    ["__main__"],
    # The package itself, with its lazy names.
    [""],
    ["pipelines"],
]
# Imports inside methods of a public class, which call what is built on the class: `store.map(...)`.
METHODS = {
    ("bertfeat.store.reader", "bertfeat.layers.measures"),
    ("bertfeat.store.reader", "bertfeat.map.build"),
    ("bertfeat.probes.fitted", "bertfeat.shipping.ship"),
    ("bertfeat.search.index", "bertfeat.search.evaluation"),
    ("bertfeat.search.index", "bertfeat.search.update"),
}
# Probes and searches take and return frames; Parquet itself is left to the store. The encoder reads the numbers of
# word vectors with polars.
FRAMES = "store corpus exports layers probes search map serve audits cli pipelines encoder"
# library -> floors that may import it
HOMES = {
    # A shipped model is one of its classes with a classifier, or one of sentence-transformers with it inside.
    "transformers": {"encoder", "text", "shipping", "pipelines"},
    "huggingface_hub": {"encoder", "exports", "shipping", "storage"},
    "safetensors": {"encoder", "heads", "ann"},
    "tokenizers": {"text", "pipelines"},
    "faiss": {"ann"},
    "pyarrow": {"store", "corpus", "cli", "exports", "search", "pipelines"},
    "polars": {*FRAMES.split()},
    # fsspec chooses the package for a URL.
    "fsspec": {"storage"},
    "s3fs": set(),
    "gcsfs": set(),
    "pandas": set(),
    "sklearn": {"heads", "extraction", "audits", "pipelines"},
    "h5py": {"exports", "pipelines"},
    "matplotlib": {"plots"},
    "umap": {"map"},
    "sentence_transformers": {"shipping"},
    "ray": {"runners"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "jinja2": {"plots", "serve"},
    "tqdm": {"progress"},
}


@functools.cache
def modules() -> dict[str, Path]:
    """Return every module of the package with its file."""
    found = {}
    # In the checkout, the recipes are reached by a link, which rglob does not follow.
    for path in sorted({*PACKAGE.rglob("*.py"), *(PACKAGE / "pipelines").glob("*.py")}):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Return every name that a file imports, also inside functions, but not the imports for type checkers only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import; write the whole name"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(found)


def home_of(name: str) -> str:
    """Return the module of this package that an imported name belongs to, or an empty string."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def floor_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def edges() -> dict[str, set[str]]:
    """Return the modules of this package that each module imports from, without `METHODS`."""
    found = {module: {home_of(name) for name in imports_of(path)} - {"", module} for module, path in modules().items()}
    for module, target in METHODS:
        found[module].remove(target)
    return found


def test_imports_go_down_only() -> None:
    level = {floor: n for n, floors in enumerate(FLOORS) for floor in floors}
    wrong = []
    assert {floor_of(module) for module in modules()} == level.keys()
    for module, targets in edges().items():
        here = floor_of(module)
        # The package itself may import from all floors.
        for there, target in ((floor_of(target), target) for target in targets):
            if here and there != here and level[there] >= level[here]:
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_no_circles() -> None:
    # The __init__ of a package runs before its modules, so a module may import a sibling through it.
    packages = {module for module, path in modules().items() if path.name == "__init__.py"}
    inside = {
        m: {t for t in targets if not (t in packages and m.startswith(t + "."))} for m, targets in edges().items()
    }
    # It raises an error that names one circle.
    graphlib.TopologicalSorter(inside).prepare()


def test_a_library_is_imported_only_where_it_belongs() -> None:
    used = [(name.split(".")[0], module) for module, path in modules().items() for name in imports_of(path)]
    wrong = [(name, module) for name, module in used if name in HOMES and floor_of(module) not in HOMES[name]]
    assert wrong == []


def run_new(code: str) -> tuple[list[str], set[str]]:
    """Run code in a new process; return its lines, and the heavy libraries that it loads. It says nothing else."""
    script = f"{MAIN}\n{code}\nprint(*[name for name in {HEAVY.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    *lines, loaded = done.stdout.splitlines()
    return lines, set(loaded.split())


def test_import_bertfeat_and_help_load_nothing_heavy() -> None:
    every = [words for words, _ in commands()]
    code = "import bertfeat; bertfeat.__version__; bertfeat.ExtractConfig(); bertfeat.BertfeatError"
    lines, loaded = run_new(f"{code}\nfor words in {every!r}: run(*words, '--help')")
    assert sum(line.startswith("Usage: bertfeat ") for line in lines) == len(every) > 12
    assert loaded == set()


@pytest.mark.parametrize(
    ("words", "offered"), [("", "plain,inspect"), ("extract --pooling m", "plain,mean"), ("extract corp", "file,corp")]
)
def test_completion_loads_nothing_heavy(words: str, offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_BERTFEAT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"bertfeat {words}")
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ") + 1))
    found, loaded = run_new("run()")
    assert offered in found
    assert loaded == set()


def test_reading_a_store_loads_no_encoder() -> None:
    _, found = run_new("import bertfeat, bertfeat.cli.summary, bertfeat.store.verification; bertfeat.open_store")
    assert {"polars", "pyarrow"} <= found
    assert not found & {"torch", "transformers", "tokenizers"}


def test_public_names() -> None:
    for name in bertfeat.__all__:
        assert getattr(bertfeat, name) is not None
    assert set(dir(bertfeat)) == set(bertfeat.__all__)
    with pytest.raises(AttributeError, match="no attribute 'extrakt'"):
        bertfeat.extrakt  # noqa: B018


ROOMS = sorted({path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"pipelines"})


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_what_others_take_from_it(room: str) -> None:
    package = importlib.import_module(f"bertfeat.{room}")
    named = package.__all__
    assert list(named) == sorted(set(named))
    for name in named:
        assert f"bertfeat.{room}.{name}" in modules() or getattr(package, name) is not None
    outside = {
        target for module, targets in edges().items() if floor_of(module) not in (room, "") for target in targets
    }
    taken = {target.split(".")[2] for target in outside if target.startswith(f"bertfeat.{room}.")}
    assert taken - set(named) == set(), f"add them to __all__ of bertfeat/{room}/__init__.py"


def test_recipes_and_examples_use_public_names_only() -> None:
    scripts = [*(ROOT / "pipelines").glob("[!_]*.py"), *(ROOT / "examples").glob("*.py")]
    assert len(scripts) > 20
    private = []
    for script in scripts:
        for name in imports_of(script):
            first, *steps = name.split(".")
            # Recipes share modules, and report their errors as a command does.
            if first != "bertfeat" or steps[:1] == ["pipelines"] or name == "bertfeat.cli.failures.report_failures":
                continue
            module: Any = bertfeat
            for step in steps:
                names = getattr(module, "__all__", None) or [known for known in vars(module) if known[0] != "_"]
                if step not in names:
                    private.append((script.name, name))
                    break
                # A module is an attribute of its room once something has imported it.
                module = getattr(module, step, None) or importlib.import_module(f"{module.__name__}.{step}")
        named = set(re.findall(r"\bbertfeat\.(\w+)", script.read_text("utf-8").split('"""', 2)[2]))
        private += [(script.name, name) for name in named - {*bertfeat.__all__, "pipelines", "cli"}]
    assert private == []


def private_names() -> set[str]:
    """Return the private names of functions, classes, fields and variables of the package."""
    found = set()
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
    # `_repr_html_` is a name of Jupyter's.
    return {name for name in found if name[0] == "_" and name[-1] != "_"}


def test_tests_use_and_replace_no_private_names() -> None:
    """A promise holds for users, who have public names only; a limit is an argument, or a real input reaches it."""
    # Ray and multiprocessing have these names too.
    names = private_names() - {"_common", "_listener"}
    assert len(names) > 500
    of_others = re.compile(rf"(?<!\bself)\.({'|'.join(names)})\b|[\"']({'|'.join(names)})[\"']")
    private = []
    for path in (ROOT / "tests").rglob("*.py"):
        private += [(path.name, match[0]) for match in of_others.finditer(path.read_text(encoding="utf-8"))]
        imported = [name for name in imports_of(path) if name.startswith("bertfeat.")]
        private += [(path.name, name) for name in imported if name.rpartition(".")[2] in names]
    assert private == []
