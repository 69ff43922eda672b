"""The blocks of docs/gallery.md, run from top to bottom: plots for the build, pages for docs/screenshots.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_gallery(folder: Path) -> None:
    """Run the blocks in a folder, where their files stay.

    Args:
        folder: An empty folder.

    Raises:
        RuntimeError: A block failed.
    """
    text = (HERE / "gallery.md").read_text(encoding="utf-8")
    (folder / "examples").symlink_to(HERE.parent / "examples")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHON": sys.executable}
    for language, block in _BLOCK.findall(text):
        if language == "python":
            command = [sys.executable, "-c", block]
        else:
            named = 'python() { "$PYTHON" "$@"; }\nbertfeat() { python -m bertfeat "$@"; }'
            command = ["bash", "-euc", f"{named}\n{block}"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"docs/gallery.md: a block failed:\n{block}\n{done.stdout}{done.stderr}")
