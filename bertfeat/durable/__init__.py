"""Durable writing: files and folders appear whole; locks, checked JSON, and what may be written where."""
