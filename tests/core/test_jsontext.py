"""JSON text: what we made is read without ado, and what others made as JSON says."""

from __future__ import annotations

import json

import pytest

from django_backwave.core.jsontext import decode_json, encode_json


@pytest.mark.parametrize("value", [None, 0, "", "é\n", [1, [2.5, None]], {"args": [], "kwargs": {"a": True}}])
def test_what_was_encoded_is_read(value):
    assert decode_json(encode_json(value)) == value


@pytest.mark.parametrize("text", [" [1]", "[1] ", "\t[1]\n", b"[1]"])
def test_what_stands_around_it_does_no_harm(text):
    assert decode_json(text) == [1]


@pytest.mark.parametrize("text", ["", " ", "[1", "[1] 2", "[1]]", "nul", "{'a': 1}", "\ufeff[1]"])
def test_what_is_no_json_is_refused_in_the_words_of_the_library(text):
    with pytest.raises(ValueError) as told:  # noqa: PT011 - the words are compared
        json.loads(text)

    with pytest.raises(ValueError) as ours:  # noqa: PT011
        decode_json(text)

    assert str(ours.value) == str(told.value)


def test_what_is_no_text_is_a_type_error():
    with pytest.raises(TypeError, match="must be str"):
        decode_json(7)  # type: ignore[arg-type]
