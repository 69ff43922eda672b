"""Reports for people: tables as text, Markdown and CSV, and plots as PNG and SVG."""

__all__ = ["charts", "tables"]
