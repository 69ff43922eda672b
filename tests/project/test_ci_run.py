"""Tests of `.ci/run`: when it tries the pages in Chromium; its commands here only write down their calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

TOOLS = ("bash", "cat", "chmod", "dirname", "mktemp", "rm", "tail", "tee", "timeout")
# Where there is apt-get, there is `timeout`.
pytestmark = pytest.mark.skipif(shutil.which("timeout") is None, reason="this system has no `timeout`")


@pytest.mark.parametrize(
    ("is_there", "user", "apt", "asked", "is_tested"),
    [
        (True, 0, "exit 1", [], True),
        (False, 0, "true", ["apt-get update", "apt-get install"], True),
        (False, 0, "exit 100", ["apt-get update"], False),
        (False, 0, '[ "$1" = update ] || exit 100', ["apt-get update", "apt-get install"], False),
        (False, 0, None, [], False),
        (False, 1000, "true", [], False),
    ],
)
def test_chromium_is_installed_where_apt_can(
    tmp_path: Path, is_there: bool, user: int, apt: str | None, asked: list[str], is_tested: bool
) -> None:
    for name in TOOLS:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    calls, chromium = tmp_path / "calls", tmp_path / "chromium"

    def command(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!{tmp_path}/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)

    command("make", f'echo "make $1" >> {calls}; echo "said by make $1"')
    command("id", f"echo {user}")
    if is_there:
        command("chromium", "true")
    if apt is not None:
        made = f'[ "$1" != install ] || {{ echo > {chromium}; chmod +x {chromium}; }}'
        command("apt-get", f'echo "apt-get $1" >> {calls}; {apt} && {made}')
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    web = ["make test-web"] if is_tested else []
    assert calls.read_text().splitlines() == [
        "make test", *asked, *web, "make test-cpus", "make check", "make docs"
    ]  # fmt: skip
    last = done.stdout.splitlines()[-1]
    assert ("were tested in Chromium" in last, "were NOT tested in a browser" in last) == (is_tested, not is_tested)
    assert last.endswith("tests: said by make test")


def test_a_check_that_fails_ends_it(tmp_path: Path) -> None:
    for name in TOOLS:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "make").write_text(f'#!{tmp_path}/bash\n[ "$1" != test ]\n')
    (tmp_path / "make").chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "passed" not in done.stdout
