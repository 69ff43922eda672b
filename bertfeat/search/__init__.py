"""From stores to indexes and back: building, updating, searching by texts, words in context or vectors."""
