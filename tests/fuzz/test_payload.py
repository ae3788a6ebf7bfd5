"""Arguments come out as they went in, or are refused with an error of ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from django_backwave.core.jsontext import decode_json
from django_backwave.exceptions import InvalidArguments, InvalidJob
from django_backwave.payload import encode_arguments, encode_output, encode_result
from tests.fuzz.cases import anything, fuzz, json_values, texts


@fuzz(0.03)
@given(json_values, json_values)
def test_what_is_json_comes_out_as_it_went_in(one, other):
    text = encode_arguments("shop.send", [one], {"key": other})
    assert decode_json(text) == {"args": [one], "kwargs": {"key": other}}
    assert text.encode()  # every database takes it


@fuzz(0.03)
@given(anything)
def test_anything_else_is_refused_with_our_error_and_says_where(value):
    for encode in (
        lambda: encode_arguments("shop.send", [value], {}),
        lambda: encode_arguments("shop.send", [], {"key": value}),
        lambda: encode_output("shop.send", value),
        lambda: encode_result("shop.send", value),
    ):
        try:
            text = encode()
        except InvalidJob as error:
            told = str(error)
        else:
            told = "shop.send"
            text.encode()
            json.loads(text)
        assert "shop.send" in told
        assert len(told) < 2000


@fuzz(0.01)
@given(texts)
def test_names_of_arguments_are_checked_as_well(name):
    try:
        text = encode_arguments("shop.send", [], {name: 1})
    except InvalidArguments:
        assert "\0" in name or any("\ud800" <= each <= "\udfff" for each in name)
    else:
        assert decode_json(text)["kwargs"] == {name: 1}


def test_what_is_nested_too_deep_is_refused_and_not_a_recursion_error():
    value: list = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidArguments, match="nested deeper than 100 levels"):
        encode_arguments("shop.send", [value], {})
