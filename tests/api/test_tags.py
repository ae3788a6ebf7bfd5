"""Tags given at enqueue, and what a result tells of tags and progress."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from django_backwave import enqueue_many, job
from django_backwave.exceptions import InvalidJob
from django_backwave.models import Job, Tag
from django_backwave.notes import Progress
from tests.api.handlers import echo, plain, send_receipt

pytestmark = pytest.mark.django_db

GIVEN = ["vip", ("customer", "7"), ("customer", "12"), "vip"]
READ = ("vip", ("customer", "12"), ("customer", "7"))


def stored(result):
    return sorted(Tag.objects.filter(job_id=result.id).values_list("key", "value"))


def test_tags_are_written_with_the_job():
    result = echo.using(tags=GIVEN).enqueue(1)

    assert stored(result) == [("", "vip"), ("customer", "12"), ("customer", "7")]
    assert result.tags == READ
    assert echo.get_result(result.id).tags == READ


def test_tags_of_many_jobs():
    results = enqueue_many(echo.using(tags=GIVEN), [((n,), {}) for n in range(3)])

    assert [stored(result) for result in results] == [
        [("", "vip"), ("customer", "12"), ("customer", "7")]
    ] * 3
    assert {result.tags for result in results} == {READ}


def test_the_tags_of_a_result_can_be_given_again():
    first = echo.using(tags=GIVEN).enqueue()
    second = echo.using(tags=first.tags).enqueue()
    assert second.tags == first.tags


def test_tags_belong_to_the_copy_and_replace_those_before():
    tagged = send_receipt.using(tags=["vip"])

    assert tagged.using(priority=3).tags == ("vip",)
    assert tagged.using(tags=["other"]).tags == ("other",)
    assert tagged.using(tags=[]).tags == ()
    assert send_receipt.tags == ()
    assert pickle.loads(pickle.dumps(tagged)).tags == ("vip",)  # noqa: S301
    assert stored(send_receipt.enqueue(7)) == []


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("vip", "Tags come in a list"),
        ({"customer": "7"}, "Tags come in a list"),
        (7, "Tags come in a list"),
        ([7], "A tag is a label"),
        ([("customer",)], "A tag is a label"),
        ([("customer", None)], "A tag is a label"),
        ([("customer", 7)], "A tag's value must be a string, got 7"),
        (["x" * 101], "A label must have 1 to 100 characters, got 101"),
        ([("n", str(n)) for n in range(51)], "At most 50 tags can be given at once, got 51"),
    ],
)
def test_what_is_no_tag_is_refused_before_any_sql(tags, message, django_assert_num_queries):
    with (
        django_assert_num_queries(0),
        pytest.raises(InvalidJob, match=r"tags of tests\.api\.handlers\.echo") as caught,
    ):
        echo.using(tags=tags)
    assert message in str(caught.value)


def test_tags_are_no_option_of_the_definition():
    with pytest.raises(TypeError, match=r"takes no option 'tags'. Write using\(tags=...\)"):
        job(tags=["vip"])(plain)


def test_a_result_tells_the_progress():
    result = echo.enqueue()
    assert result.progress is None
    at = datetime(2026, 3, 1, tzinfo=UTC)
    Job.objects.update(progress={"done": 3, "total": 10, "message": "packing", "at": at.isoformat()})

    result.refresh()
    assert result.progress == Progress(3, 10, "packing", at)
    assert result.progress.share == 0.3
