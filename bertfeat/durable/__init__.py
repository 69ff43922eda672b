"""Durable writing: files and folders appear whole; locks, checked JSON, and checks of output places."""

__all__ = ["differences", "file_lock", "files", "output_check", "publication", "records", "steps", "user_cache"]
