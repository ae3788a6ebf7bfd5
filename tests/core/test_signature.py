"""Signatures as text, and what a change of one does to stored calls: pure, against Python's own binding."""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_backwave.core.signature import as_text, breach, from_text

MOVED = "what was given by position would be taken for another parameter"


def fits(made: Signature, number: int, names: set[str]) -> bool:
    try:
        made.bind(*range(number), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


KINDS = st.sampled_from(list(Parameter.POSITIONAL_ONLY.__class__))


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    """Return any signature over a few names."""
    names = draw(st.permutations(["a", "b", "c", "d"]))[: draw(st.integers(0, 4))]
    kinds = sorted(draw(st.lists(KINDS, min_size=len(names), max_size=len(names))))
    parameters: list[Parameter] = []
    for name, kind in zip(names, kinds, strict=True):
        several = kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if several and any(each.kind is kind for each in parameters):
            continue
        positional = kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        must = positional and any(each.default is not each.empty for each in parameters)
        optional = not several and (must or draw(st.booleans()))
        parameters.append(Parameter(name, kind, default=None if optional else Parameter.empty))
    return Signature(parameters)


@given(signatures())
def test_text_reads_back_as_the_same_signature(made: Signature) -> None:
    text = as_text(made)

    assert as_text(from_text(text)) == text
    assert [(each.name, each.kind) for each in from_text(text).parameters.values()] == [
        (each.name, each.kind) for each in made.parameters.values()
    ]
    assert breach(made, from_text(text)) is None


@given(signatures(), signatures(), st.integers(0, 6), st.sets(st.sampled_from("abcdef")))
def test_no_call_is_lost_without_a_word(
    before: Signature, after: Signature, number: int, names: set[str]
) -> None:
    if breach(before, after) is None and fits(before, number, names):
        assert fits(after, number, names)


@given(signatures(), signatures())
def test_a_breach_of_binding_is_one_of_a_call_that_did_fit(before: Signature, after: Signature) -> None:
    """Among all calls over these names there is one, unless it is the places that have changed."""
    reason = breach(before, after)
    if reason is None or reason == MOVED:
        return

    names = [set(chosen) for chosen in _subsets("abcdx")]

    assert any(
        fits(before, number, chosen) and not fits(after, number, chosen)
        for number in range(7)
        for chosen in names
    )


def _subsets(letters: str) -> list[str]:
    found = [""]
    for letter in letters:
        found += [each + letter for each in found]
    return found


def test_neither_annotations_nor_defaults_count() -> None:
    def before(order_id: int, copies: int = 1, *, loud: bool = False) -> int: ...
    def after(order_id: str, copies: str = "many", *, loud: Any = None) -> None: ...

    assert as_text(signature(before)) == as_text(signature(after)) == "(order_id, copies=..., *, loud=...)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(a)", "(a, b=...)"),
        ("(a)", "(a, *, b=...)"),
        ("(a)", "(a, *rest, **others)"),
        ("(a, /)", "(b, /)"),
        ("(a, /)", "(a)"),
        ("(*, a)", "(a)"),
        ("(a, b)", "(a, b=...)"),
        ("(*args)", "(*rest)"),
        ("(**kwargs)", "(a=..., **others)"),
    ],
)
def test_what_every_stored_call_survives(before: str, after: str) -> None:
    assert breach(from_text(before), from_text(after)) is None


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("(a)", "()", "too many positional arguments|unexpected keyword argument 'a'"),
        ("(a)", "(b)", "'b'"),
        ("(a)", "(a, b)", "missing a required argument: 'b'"),
        ("(a=...)", "(a)", "missing a required argument: 'a'"),
        ("(a)", "(*, a)", "too many positional arguments"),
        ("(a)", "(a, /)", "'a'"),
        ("(a, b=...)", "(a)", "unexpected keyword argument 'b'"),
        ("(*args)", "(a=..., b=...)", "too many positional arguments"),
        ("(**kwargs)", "(a=...)", "unexpected keyword argument 'another name'"),
        ("(*args, **kwargs)", "(a=..., *args, **kwargs)", "multiple values for argument 'a'"),
        ("(a, b)", "(b, a)", "multiple values for argument 'b'"),
        ("(a, b=...)", "(a, c=..., b=...)", MOVED),
        ("(a, b, /)", "(b, a, /)", MOVED),
        ("(*args)", "(a=..., *args)", MOVED),
    ],
)
def test_what_some_stored_call_does_not(before: str, after: str, reason: str) -> None:
    told = breach(from_text(before), from_text(after))

    assert told is not None
    assert any(each in told for each in reason.split("|"))


@pytest.mark.parametrize("text", ["", "(", "a", "(a", "f()", "(a): pass\ndef f()", "(a a)", "(a=...)(b)"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no signature such as"):
        from_text(text)
