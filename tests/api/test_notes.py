"""What a handler may say of its job, and how it is told what it may not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from django_backwave.core.jsontext import decode_json
from django_backwave.core.limits import MOST_TAGS
from django_backwave.notes import Notes, Progress, Word
from tests.api.test_context import context

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_labels_and_tags_are_kept_once_and_in_order():
    notes = Notes()
    told = context(notes=notes)

    for given in (("vip",), ("customer", "7"), ("vip",), ("customer", "8"), ("customer", "7")):
        told.tag(*given)

    assert notes.tags == (Word("", "vip"), Word("customer", "7"), Word("customer", "8"))
    assert [word.tag for word in notes.tags] == ["vip", ("customer", "7"), ("customer", "8")]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((7,), TypeError, "A label must be a string, got 7"),
        ((None,), TypeError, "A label must be a string, got None"),
        (("customer", 7), TypeError, "A tag's value must be a string, got 7"),
        ((7, "customer"), TypeError, "A tag's key must be a string, got 7"),
        (("",), ValueError, "A label must have 1 to 100 characters, got 0"),
        (("x" * 101,), ValueError, "A label must have 1 to 100 characters, got 101"),
        (("", "7"), ValueError, "A tag's key must have 1 to 50 characters, got 0"),
        (("x" * 51, "7"), ValueError, "A tag's key must have 1 to 50 characters, got 51"),
        (("customer", ""), ValueError, "A tag's value must have 1 to 100 characters, got 0"),
        (("customer", "x" * 101), ValueError, "A tag's value must have 1 to 100 characters, got 101"),
        (("a\0b",), ValueError, "A label must be plain text, got: NUL character"),
        (("customer", "\ud800"), ValueError, "A tag's value must be plain text, got: Lone surrogate"),
        ((" vip",), ValueError, "A label must not begin or end with white space"),
        (("customer=7",), ValueError, "A label must not contain '='"),
        (("a=b", "7"), ValueError, "A tag's key must not contain '='"),
    ],
)
def test_what_is_no_tag_is_refused_where_it_is_said(given, error, message):
    notes = Notes()

    with pytest.raises(error, match="^" + message):
        context(notes=notes).tag(*given)
    assert notes.tags == ()


def test_a_tag_of_the_longest_kind():
    notes = Notes()
    context(notes=notes).tag("ä" * 50, "=" + "💥" * 99)
    assert notes.tags == (Word("ä" * 50, "=" + "💥" * 99),)


def test_an_attempt_gives_so_many_tags_and_may_repeat_them():
    notes = Notes()
    told = context(notes=notes)
    for number in range(MOST_TAGS):
        told.tag("n", str(number))

    told.tag("n", "0")
    with pytest.raises(ValueError, match=r"at most 50 tags, and \('n', '50'\) is one more"):
        told.tag("n", "50")
    assert len(notes.tags) == MOST_TAGS


@pytest.mark.parametrize("word", [Word("", "vip"), Word("customer", "7"), Word("equation", "a=b")])
def test_a_tag_reads_as_it_is_typed(word):
    assert Word.parse(str(word)) == word


def test_the_newest_progress_wins_and_is_news_until_it_was_written():
    hints = []
    notes = Notes(told=lambda: hints.append(notes.news.done))
    told = context(notes=notes)

    told.progress(1, 10)
    told.progress(2, 10, "packing")

    assert notes.news == Progress(2, 10, "packing")
    first = notes.news
    told.progress(3)
    notes.wrote(first)
    assert notes.news == Progress(3, None, "")
    notes.wrote(notes.news)
    assert notes.news is None
    assert hints == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("3",), TypeError, "done of progress"),
        ((True,), TypeError, "done of progress"),
        ((None,), TypeError, "done of progress"),
        ((float("nan"),), ValueError, "done of progress"),
        ((float("inf"),), ValueError, "done of progress"),
        ((-1,), ValueError, "done of progress"),
        ((10**16,), ValueError, "done of progress"),
        ((1, float("inf")), ValueError, "total of progress"),
        ((1, -1), ValueError, "total of progress"),
        ((1, 2, None), TypeError, "The message of progress"),
        ((1, 2, "x" * 201), ValueError, "must have at most 200 characters, got 201"),
        ((1, 2, "a\0b"), ValueError, "must be plain text, got: NUL"),
        ((1, 2, "\ud800"), ValueError, "must be plain text, got: Lone surrogate"),
    ],
)
def test_what_is_no_progress_is_refused_where_it_is_said(given, error, message):
    notes = Notes()

    with pytest.raises(error, match=message):
        context(notes=notes).progress(*given)
    assert notes.news is None


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (Progress(3, 10, ""), 0.3),
        (Progress(0.5, 1, ""), 0.5),
        (Progress(3, None, ""), None),
        (Progress(0, 0, ""), 1.0),
        (Progress(12, 10, ""), 1.0),  # an estimate may turn out too low
    ],
)
def test_the_share_that_is_done(progress, share):
    assert progress.share == share


def test_progress_is_stored_as_plain_ascii_and_read_again():
    progress = Progress(1.5, 3, "Größe 💥")
    text = progress.encoded(NOW)

    assert text.isascii()
    assert Progress.read(decode_json(text)) == progress._replace(at=NOW)


@pytest.mark.parametrize(
    "value", [None, [], {}, {"done": "x", "total": None, "message": "", "at": "y"}, "text"]
)
def test_a_column_that_somebody_else_wrote_is_no_progress(value):
    assert Progress.read(value) is None


def test_headers_are_what_the_claim_brought():
    assert context().headers == {}
    told = context(headers='{"tenant":"acme","trace":[1]}')
    assert told.headers == {"tenant": "acme", "trace": [1]}
    assert told.headers is told.headers
