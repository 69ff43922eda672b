"""Folders of the repository that tests read from."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
