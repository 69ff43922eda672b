"""The commands and Python blocks of the README and docs/ run, each page from top to bottom in its own folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertfeat import __all__ as public_names
from docs.modeltable import with_table
from tests.support import pipeline_runs
from tests.support.command_line import Result, bertfeat, flags
from tests.support.places import ROOT, TESTS

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
ALL = "\n".join(PAGES.values())
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = {name: [block for block in BLOCK.findall(text) if block[0] in ("bash", "python")] for name, text in PAGES.items()}
GIT: list[str | Path] = ["git", "-C"]
# Of each text under examples/data: enough to show everything, and quick.
N_LINES = {"peps.txt": 24, "wnut17_dev.conll": 300, "reviews.csv": 100, "reviews_test.csv": 100}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the root of the repository, with the heads of its texts; the current one."""
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    for name, n_lines in N_LINES.items():
        text = tmp_path / "examples" / "data" / name
        lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
        text.write_text("".join(lines[:n_lines]), encoding="utf-8")
    for name in (".gitignore", "Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    subprocess.run([*GIT, tmp_path, "init", "--quiet"], check=True)
    subprocess.run([*GIT, tmp_path, "add", "."], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_here(command: str) -> Result | None:
    """Run a command of bertfeat in this process, where an import of torch has been paid for; None for another."""
    given, is_piped, piped = command.rpartition(" | ")
    words = shlex.split(piped)
    if words[0] == "bertfeat":
        stdin = subprocess.run(["bash", "-c", given], capture_output=True, check=True).stdout if is_piped else b""
        return bertfeat(*words[1:], stdin=stdin)
    if words[:2] == ["python", "-m"]:
        # That a new process finds it is shown of an installed wheel by test_package.py.
        assert importlib.util.find_spec(words[2])
        return pipeline_runs.run(
            words[2].removeprefix("bertfeat.pipelines").removeprefix(".") or "__main__", *words[3:]
        )
    return None


def run_command(command: str, folder: Path) -> None:
    if result := run_here(command):
        # A recipe reports what it has done so far on standard error.
        reported = "" if command.startswith("python -m bertfeat.pipelines.") else result.err
        assert (result.code, reported) == (0, ""), f"{command}: {result.err}"
        return
    # What make would install and run is run by the checks themselves; here its targets only have to exist.
    line = f"{command} --dry-run" if command.startswith("make ") else command
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # The suite may run under make, whose settings must not reach these commands.
    environment = {**os.environ, "PATH": path, "MAKEFLAGS": "", "MAKELEVEL": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"


# tests/project/test_start_pages.py runs the walk-throughs, and compares what they print; `make docs` runs the gallery.
@pytest.mark.parametrize(
    "page", [name for name in RUN if RUN[name] and not name.startswith(("docs/start/", "docs/gallery.md"))]
)
def test_every_block_of_a_page_runs_from_top_to_bottom(page: str, place: Path) -> None:
    for language, block in RUN[page]:
        if language == "python":
            # Each block runs alone: it imports and opens what it uses.
            exec(compile(block, page, "exec"), {})
        else:
            for command in block.replace("\\\n", " ").splitlines():
                if command.strip():
                    run_command(command, place)
    listed = [*GIT, place, "ls-files", "--others", "--exclude-standard", "--directory"]
    assert subprocess.run(listed, check=True, capture_output=True, text=True).stdout == "", "add it to .gitignore"


def test_blocks_are_found_and_show_the_main_commands() -> None:
    assert {language for _, blocks in RUN.items() for language, _ in blocks} == {"bash", "python"}
    # A block without a language would be neither run nor plain text.
    assert {language for language, _ in BLOCK.findall(ALL)} <= {"bash", "python", "text", "diff", "json", ""}
    shown = "\n".join(block for blocks in RUN.values() for language, block in blocks if language == "bash")
    for words in (
        "make demo",
        "make test",
        "bertfeat extract",
        "bertfeat inspect",
        "bertfeat verify",
        "bertfeat models",
    ):
        assert words in shown


def test_the_table_of_families_is_that_of_the_code() -> None:
    page = PAGES["docs/models.md"]
    assert page == with_table(page), "run: python docs/modeltable.py"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"])
def test_every_file_and_heading_that_a_page_links_exists(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if "://" in link or name.startswith("pictures/"):
            continue
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, link


def test_every_page_is_in_the_navigation_and_the_readme_is_short() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in PAGES if name.startswith("docs/") and name.removeprefix("docs/") not in navigation] == []
    assert len(PAGES["README.md"].splitlines()) <= 200


def test_every_flag_that_a_page_names_is_one() -> None:
    # Flags of bertfeat are in code spans; blocks run.
    named = set(re.findall(r"`(--[a-z-]+)", ALL))
    recipes = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pipelines").glob("*.py"))
    assert sorted(named - flags() - set(re.findall(r"\"(--[a-z-]+)\"", recipes))) == []


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    named = set(re.findall(r"^::: bertfeat\.(\w+)", PAGES["docs/api.md"], re.MULTILINE))
    # Errors are on the page of their module.
    assert named == set(public_names) - {"__version__", "BertfeatError"}


def test_every_variable_that_the_package_reads_is_on_the_page_of_the_shell() -> None:
    named = set()
    for path in sorted((ROOT / "bertfeat").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "environ" in text:
            named |= set(re.findall(r"\"(_?[A-Z]+(?:_[A-Z]+)+|TMPDIR)\"", text))
    assert {"BERTFEAT_CACHE", "RAY_ADDRESS", "TMPDIR", "_BERTFEAT_COMPLETE"} <= named
    assert sorted(name for name in named if f"`{name}`" not in PAGES["docs/shell.md"]) == []


def test_every_test_that_the_guarantees_name_exists() -> None:
    named = 0
    for cell in re.findall(r"^\|[^|]*\| ([^|]*test_[^|]*) \|$", PAGES["docs/guarantees.md"], re.MULTILINE):
        file = ""
        for name, test in re.findall(r"`([a-z]+/test_\w+\.py)?(?:::(test_\w+))?`", cell):
            file = name or file
            text = (TESTS / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in text, f"{file}::{test}"
            named += 1
    assert named > 25
