"""Reports for people: tables as text, Markdown and CSV, plots as PNG and SVG, and pages."""

__all__ = ["charts", "pages", "tables"]
