"""`python -m bertfeat`: the command line."""

from __future__ import annotations

from bertfeat.cli import run

run()
