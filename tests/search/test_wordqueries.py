"""Marked queries, and hits in their context, without a model."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfeat.display import display_width, printable
from bertfeat.errors import UserError
from bertfeat.search.hits import context_of
from bertfeat.search.query_vectors import covered_row, parse_marked


class TestMarks:
    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ("two words", "no word is marked"),
            ("a [b", "the brackets do not mark one word"),
            ("[a [b] c]", "the brackets do not mark one word"),
        ],
    )
    def test_mistakes_name_the_query(self, query: str, said: str) -> None:
        with pytest.raises(UserError, match=said) as error:
            parse_marked(query, "query 7")
        assert str(error.value).startswith(f"query 7 {query!r}: ")

    def test_the_first_word_in_the_brackets(self) -> None:
        # one two six begin at 0, 4 and 8.
        def covered(query: str) -> int:
            starts, ends = np.array([0, 4, 8], np.int32), np.array([3, 7, 11], np.int32)
            return covered_row(parse_marked(query), starts, ends, name="query", what="token")

        for query, row in [("one [two] six", 1), ("[on]e two six", 0), ("one tw[o] six", 1), ("one [ two] six", 1)]:
            assert covered(query) == row
        for query in ("one[ ]two six", "[]one two six", "o[]ne two six", "one two six[ ]"):
            with pytest.raises(UserError, match=r"query '.*\[.*\].*': the brackets cover no token"):
                covered(query)
        for query in ("one [two six]", "on[e t]wo six"):
            with pytest.raises(UserError, match=r"query '.*\[.*\].*': the brackets cover several words"):
                covered(query)

    @given(st.lists(st.text("ab \t[]\\", max_size=4), min_size=3, max_size=3))
    def test_escaped_text_around_a_mark_comes_back(self, parts: list[str]) -> None:
        escaped = ["".join("\\" + c if c in "[]\\" else c for c in part) for part in parts]
        found = parse_marked(f"{escaped[0]}[{escaped[1]}]{escaped[2]}")
        assert (found.text, found.start, found.marked) == ("".join(parts), len(parts[0]), parts[1])
        assert found.bracketed == f"{parts[0]}[{parts[1]}]{parts[2]}"


class TestContext:
    def test_both_sides_are_cut_to_the_width(self) -> None:
        text = "The quick brown fox jumps over the lazy dog"
        context = context_of(text, 16, 19, width=9)
        assert context.marked() == "…k brown [fox] jumps o…"
        assert context_of(text, 0, 3, width=9).aligned(9) == " " * 9 + "[The] quick b…"
        assert context_of(text, 40, 43, width=100).marked() == text[:40] + "[dog]"

    def test_control_characters_are_replaced(self) -> None:
        text = "a\tb\r\nc\x1b[31mred\x07 \u202eevil\u2066\u200b \u2028d \x00\x9b end"
        shown = printable(text)
        assert shown == "a b  c\ufffd[31mred\ufffd evil  d \ufffd\ufffd end"
        assert printable("می\u200cخواهم 👩\u200d🚀") == "می\u200cخواهم 👩\u200d🚀"

    @given(st.text(max_size=60), st.integers(0, 60), st.integers(0, 12), st.integers(0, 20))
    def test_any_text_gives_one_line_of_the_given_width(self, text: str, start: int, n: int, width: int) -> None:
        start = min(start, len(text))
        context = context_of(text, start, min(start + n, len(text)), width)
        for side in (context.left, context.right):
            assert display_width(side) <= width
        line = context.aligned(width)
        assert len(line.splitlines()) == 1
        assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in line)
