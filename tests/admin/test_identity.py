"""Keys and generations in the admin: found, shown, run again; who may, what is said and written."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from django_backwave.admin import KeyAdmin, filters, keyed
from django_backwave.core.states import JobState
from django_backwave.models import Action, Job, Key, Operation
from django_backwave.store import keys, operate
from django_backwave.store.claim import claim
from tests.admin.conftest import SECRETS, VIEWS, staff, told, url
from tests.factories import LEASE, NOW, WORKER, after, contents, ready, row
from tests.store.test_again import keyed as generation

pytestmark = pytest.mark.django_db

MARKUP = "<script>alert('1')</script>&amp;\"%s{0}"


@pytest.fixture
def requeuer(db) -> Client:
    """Sees every page, and may requeue; not what jobs carry."""
    return staff("requeuer", *VIEWS, "requeue_job", "view_key")


def listed(client, **query):
    response = client.get(url("job", "changelist"), query)
    return response, [job.pk for job in response.context["cl"].result_list or ()]


def press(client, job, verb="run_again", **form):
    return client.post(url("job", verb, job.pk), form, follow=True)


def run_selected(client, *jobs, action="run_again_selected"):
    selected = [str(job.pk) for job in jobs]
    post = {"action": action, "_selected_action": selected, "index": 0}
    return client.post(url("job", "changelist"), post, follow=True)


def everything():
    rows = [list(model.objects.order_by("pk").values()) for model in (Action, LogEntry)]
    known = Key.objects.order_by("pk").values_list("pk", "generation", "job_id", "forget_at", "settled_as")
    return [*contents(), *rows, list(known)]


def page_of(client, job):
    response = client.get(url("job", "change", job.pk))
    return response.context["key"], response.content.decode()


def buttons(text):
    return re.findall(r"<button[^>]*>([^<]+)</button>", text.partition("bw-head")[2])


# The filter.


def test_jobs_are_found_by_their_whole_key(superuser):
    first, second = generation(), generation()
    elsewhere = generation(queue="other")
    generation("receipt:70")
    ready()

    assert listed(superuser, key="receipt:7")[1] == [elsewhere.pk, second.pk, first.pk]
    assert listed(superuser, key="receipt:7", queue="other")[1] == [elsewhere.pk]
    assert listed(superuser, key="receipt:")[1] == []
    assert listed(superuser, key="receipt:7", queue="receipt:7")[1] == []


def test_a_key_is_compared_byte_for_byte(superuser):
    lower, upper, padded = generation("order:a"), generation("order:A"), generation("order:a ")

    for job in (lower, upper, padded):
        assert listed(superuser, key=job.key)[1] == [job.pk]


def test_a_key_goes_together_with_other_filters(superuser):
    done = generation(tags=(("", "vip"),))
    late = generation(state=JobState.DEAD_LETTERED)

    assert listed(superuser, key="receipt:7", state="dead-lettered")[1] == [late.pk]
    assert listed(superuser, key="receipt:7", name="send")[1] == [late.pk, done.pk]
    assert listed(superuser, key="receipt:7", name="other")[1] == []
    assert listed(superuser, key="receipt:7", tag="vip")[1] == [done.pk]
    assert listed(superuser, key="receipt:8", tag="vip")[1] == []
    assert listed(superuser, key="receipt:7", q=str(done.pk))[1] == [done.pk]
    assert listed(superuser, key="receipt:8", q=str(done.pk))[1] == []


def test_the_list_says_which_generation_a_job_is(superuser):
    generation()
    generation()
    ready()

    text = listed(superuser)[0].content.decode()

    assert re.findall(r'<span class="bw-below">generation (\d+)</span>', text) == ["2", "1"]


@pytest.mark.parametrize("key", [MARKUP, "k" * 255, "'; DROP TABLE x; --", "%", "_", "ключ 🔑", "\\", "a\nb"])
def test_any_key_can_be_looked_for(superuser, key):
    job = generation(key)
    generation("other")

    response, found = listed(superuser, key=key)
    text = response.content.decode() + superuser.get(url("job", "change", job.pk)).content.decode()

    assert found == [job.pk]
    assert "<script>alert" not in text
    assert superuser.get(url("key", "changelist"), {"q": key}).context["cl"].result_list[0].key == key


@pytest.mark.parametrize("key", ["a\0b", "k" * 256])
def test_what_is_no_key_leads_to_the_whole_list(superuser, key):
    response = superuser.get(url("job", "changelist"), {"key": key})

    assert response.url == f"{url('job', 'changelist')}?e=1"
    found = superuser.get(url("key", "changelist"), {"q": key})
    assert found.status_code == 200
    assert not found.context["cl"].result_list


def test_nothing_is_counted_and_each_page_is_as_dear(superuser):
    for number in range(60):
        generation(f"k:{number % 3}", state=JobState.SUCCEEDED)

    with CaptureQueriesContext(connections["default"]) as few:
        listed(superuser, key="nothing")
    with CaptureQueriesContext(connections["default"]) as many:
        listed(superuser, key="k:1", queue="default")

    assert not [each["sql"] for each in (*few, *many) if "COUNT(" in each["sql"]]
    assert len(many) <= len(few) + 2, "the time, and the sessions' own"


def test_a_bound_is_told(superuser, monkeypatch):
    monkeypatch.setattr(filters, "MOST_KEYED", 2)
    _, second, third = (generation() for _ in range(3))

    response, found = listed(superuser, key="receipt:7", queue="default")

    assert found == [third.pk, second.pk]
    assert told(response) == [
        "Only 2 jobs with this key are shown: the newest of one queue, if one is chosen."
    ]


def test_all_that_match_is_not_offered_by_key(superuser):
    generation()

    assert listed(superuser, key="receipt:7")[0].context["matching_links"] == []


# A job's page.


def test_the_page_shows_the_generations_of_its_key(superuser):
    first = generation(schema="receipt/2", state=JobState.DEAD_LETTERED)
    second = generation(schema="receipt/2", state=JobState.READY)

    key, text = page_of(superuser, first)

    facts = {str(label): str(value) for label, value in key.facts}
    assert facts["Generation"] == "1"
    assert url("job", "change", second.pk) in facts["Leads to"]
    assert "ready" in facts["Leads to"]
    assert facts["Remembered"] == "for ever"
    assert "Last asked for" in facts
    assert f"{url('job', 'changelist')}?queue=default&amp;key=receipt%3A7" in facts["Key"]
    assert [row.here for row in key.rows] == [False, True]
    assert url("job", "change", second.pk) in key.rows[0].cells[0]
    assert url("job", "change", first.pk) not in "".join(map(str, key.rows[1].cells))
    assert "receipt/2" in text
    assert 'aria-current="true"' in text

    assert dict(page_of(superuser, second)[0].facts)["Leads to"] == "this job"


def test_a_job_without_a_key_says_nothing_of_it(superuser):
    key, text = page_of(superuser, ready(state=JobState.SUCCEEDED))

    assert key is None
    for word in ("bw-key", "Run again", "Prepared enqueue", "Schema"):
        assert word not in text


def test_many_generations_are_listed_as_far_as_a_page_goes(superuser, monkeypatch):
    monkeypatch.setattr(keyed, "MOST", 2)
    jobs = [generation() for _ in range(3)]

    key, text = page_of(superuser, jobs[0])

    assert [int(re.findall(r"\d+</a>", row.cells[0])[0][:-4]) for row in key.rows] == [3, 2]
    assert key.all_url in text.replace("&amp;", "&")
    assert superuser.get(key.all_url).context["cl"].result_list[2].pk == jobs[0].pk


@pytest.mark.parametrize(
    ("forget_at", "said"),
    [(None, "for ever"), (NOW, "as long as a job of it is kept"), (after(9**9), "in ")],
)
def test_until_when_a_key_is_remembered(superuser, forget_at, said):
    job = generation()
    Key.objects.update(forget_at=forget_at)

    assert said in str(dict(page_of(superuser, job)[0].facts)["Remembered"])
    assert said in superuser.get(url("key", "changelist")).content.decode()


def test_the_last_generation_may_have_been_pruned(superuser):
    old, last = generation(), generation(state=JobState.DEAD_LETTERED)
    keys.farewell([last.pk], using="default")
    last.delete()

    leads_to = dict(page_of(superuser, old)[0].facts)["Leads to"]

    assert "generation 2, pruned" in leads_to
    assert "dead-lettered" in leads_to
    assert "generation 2, pruned" in superuser.get(url("key", "changelist")).content.decode()


def test_a_key_that_is_gone_from_its_table(superuser):
    job = generation()
    Key.objects.all().delete()

    assert dict(page_of(superuser, job)[0].facts)["Remembered"] == "not any more"


def test_an_older_generation_that_runs_again_is_the_one(superuser):
    old, newer = generation(state=JobState.DEAD_LETTERED), generation()
    operate.requeue([old.pk], using="default")

    key, text = page_of(superuser, newer)

    assert url("job", "change", old.pk) in dict(key.facts)["Leads to"]
    assert not key.may_run_again
    assert "Generation 1 of its key is unfinished: until it ends, this job cannot run again." in text


def test_a_prepared_enqueue_is_shown(superuser):
    job = generation()
    Operation.objects.create(
        id=job.pk, digest="d", job_id=job.pk, created=True, recorded_at=NOW, deadline=after(300)
    )

    response = superuser.get(url("job", "change", job.pk))

    assert dict(response.context["prepared"])["Came to"] == "this job"
    assert "Prepared enqueue" in response.content.decode()
    Operation.objects.update(job_id=None)
    assert "it never will" in superuser.get(url("job", "change", job.pk)).content.decode()


def test_the_page_costs_the_same_however_many_generations_there_are(superuser):
    one = generation("k:1")
    for _ in range(15):
        job = generation("k:2")

    with CaptureQueriesContext(connections["default"]) as few:
        page_of(superuser, one)
    with CaptureQueriesContext(connections["default"]) as many:
        page_of(superuser, job)

    assert len(few) == len(many) <= 15


def test_secrets_of_generations_are_not_read(requeuer):
    payload = f'{{"args":["{SECRETS["payload"]}"],"kwargs":{{}}}}'
    old = generation(payload=payload, headers='{"tenant":"s3cret"}')
    generation(payload=payload)
    Job.objects.update(cause="s3cret", output="s3cret")

    with CaptureQueriesContext(connections["default"]) as queries:
        shown = [page_of(requeuer, old)[1], listed(requeuer, key="receipt:7")[0].content.decode()]
        shown.append(requeuer.get(url("key", "changelist")).content.decode())

    for query in queries:
        for column in ("payload", "output", "cause", "headers"):
            assert f'"{column}"' not in query["sql"].replace("`", '"')
    shown.append(press(requeuer, old).content.decode())
    assert not [text for text in shown if "s3cret" in text]


# Run again.


def test_the_button_runs_it_again_and_says_so(superuser):
    old = generation(payload='{"args":[7],"kwargs":{}}')
    assert "Run again as a new generation" in buttons(page_of(superuser, old)[1])

    response = press(superuser, old)

    new = Job.objects.get(generation=2)
    [message] = told(response)
    assert message == (
        f'The same work was enqueued as generation 2: <a href="{url("job", "change", new.pk)}">{new.pk}</a>'
    )
    assert message in response.content.decode()
    assert response.redirect_chain == [(url("job", "change", old.pk), 302)]
    assert (new.payload, new.state) == ({"args": [7], "kwargs": {}}, JobState.READY)
    who = f"{User.objects.get().pk} root"
    assert list(Action.objects.order_by("pk").values_list("verb", "actor", "job_id", "result")) == [
        ("run_again", who, old.pk, f"generation 2, job {new.pk}"),
        ("run_again", who, new.pk, f"of generation 1, job {old.pk}"),
    ]
    assert LogEntry.objects.get().change_message == "Run again as a new generation."
    assert f"of generation 1, job {old.pk}" in page_of(superuser, new)[1]
    assert "run again" in superuser.get(url("action", "changelist")).content.decode()


def test_pressing_twice_makes_one(superuser):
    """As two operators do who look at the same page: the other one is told which generation it is."""
    old = generation()
    press(superuser, old)
    before = everything()

    response = press(superuser, old)

    new = Job.objects.get(generation=2)
    [message] = told(response)
    assert message.startswith("Nothing was changed: generation 2 of the job's key is unfinished.")
    assert url("job", "change", new.pk) in message
    assert everything() == before


def test_a_job_without_a_key_is_refused_with_a_remedy(superuser):
    job = ready(state=JobState.SUCCEEDED)
    before = everything()

    assert told(press(superuser, job)) == [
        "Nothing was changed: the job has no key, and so there are no generations of it. Requeue it, or "
        "enqueue the work again."
    ]
    assert everything() == before


def test_a_key_of_other_jobs_by_now_is_named(superuser):
    old = generation()
    Job.objects.filter(pk=old.pk).update(name="shop.former")

    [message] = told(press(superuser, old))

    assert message.startswith("Nothing was changed: the job's key belongs to jobs of another name by now")


def test_the_list_runs_them_again_and_counts(superuser):
    done, late, busy = generation("a"), generation("b"), generation("c", state=JobState.READY)
    jobs = [done, late, busy, ready(), Job(pk="0190a0a0-0000-7000-8000-000000000000")]

    response = run_selected(superuser, *jobs)

    assert told(response) == [
        "2 run again as new generations, 1 without a key (requeue it, or enqueue the work again), "
        "1 whose key has an unfinished generation, 1 not found"
    ]
    assert sorted(Job.objects.filter(generation=2).values_list("key", flat=True)) == ["a", "b"]
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        (JobState.READY, ["Cancel job"]),
        (JobState.SUCCEEDED, ["Run again as a new generation"]),
        (JobState.DEAD_LETTERED, ["Run again as a new generation", "Requeue job"]),
        (JobState.CANCELLED, ["Run again as a new generation", "Requeue job"]),
    ],
)
def test_buttons_obey_the_key(superuser, state, offered):
    job = generation(state=state)

    assert [
        text for text in buttons(page_of(superuser, job)[1]) if "job" in text or "again" in text
    ] == offered


def test_nothing_is_offered_while_another_generation_is_unfinished(superuser):
    old = generation(state=JobState.DEAD_LETTERED)
    generation(state=JobState.READY)

    text = page_of(superuser, old)[1]

    assert buttons(text) == []
    assert "Generation 2 of its key is unfinished" in text


def test_it_needs_the_permission_to_requeue(viewer, canceller, nobody, requeuer):
    old = generation()
    before = everything()

    for client in (viewer, canceller, nobody, staff("blind", "requeue_job")):
        for response in (press(client, old), client.get(url("job", "run_again", old.pk))):
            assert response.status_code == 403
    assert "Run again" not in page_of(viewer, old)[1]
    run_selected(canceller, old)
    assert everything() == before

    assert "Run again" in page_of(requeuer, old)[1]
    press(requeuer, old)
    assert Job.objects.count() == 2


def test_looking_does_nothing_and_strangers_and_forgeries_are_refused(superuser):
    old = generation()
    forger = Client(enforce_csrf_checks=True)
    forger.force_login(User.objects.get())
    before = everything()

    assert superuser.get(url("job", "run_again", old.pk)).url == url("job", "change", old.pk)
    assert forger.post(url("job", "run_again", old.pk)).status_code == 403
    assert Client().post(url("job", "run_again", old.pk)).url.startswith("/admin/login/")
    for unknown in ("0190a0a0-0000-7000-8000-000000000000", "nonsense", "a_00b"):
        assert superuser.post(url("job", "run_again", unknown)).status_code == 302

    assert everything() == before


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("atomic", [False, True])
def test_another_database(superuser, atomic, monkeypatch):
    old = generation(using="other")
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", atomic)

    with override_settings(BACKWAVE={"DATABASE": "other"}, LANGUAGE_CODE="ar"):
        press(superuser, old)
        assert listed(superuser, key="receipt:7")[1][1] == old.pk
        assert superuser.get(url("key", "changelist"), {"q": "receipt:7"}).context["cl"].result_list

    assert Job.objects.using("other").count() == 2
    assert Action.objects.using("other").count() == 2
    assert Job.objects.count() == Action.objects.count() == 0


# What else a key changes.


def test_a_requeue_is_refused_while_another_generation_is_unfinished(superuser):
    old = generation(state=JobState.DEAD_LETTERED)
    generation(state=JobState.READY)
    before = everything()

    assert told(press(superuser, old, "requeue")) == [
        "Nothing was changed: another generation of the job's key is unfinished. Wait for that one, or "
        "cancel it first."
    ]
    assert told(run_selected(superuser, old, action="requeue_selected")) == [
        "1 whose key has an unfinished generation"
    ]
    matching = superuser.post(url("job", "matching_requeue") + "?queue=default", follow=True)
    assert told(matching) == ["1 whose key has an unfinished generation"]
    assert everything() == before


def test_of_several_generations_that_match_one_is_requeued(superuser):
    jobs = [generation(state=JobState.CANCELLED) for _ in range(3)]

    response = superuser.post(url("job", "matching_requeue") + "?queue=default", follow=True)

    assert told(response) == ["1 requeued, 2 whose keys have an unfinished generation"]
    assert [row(job).state for job in jobs] == [JobState.CANCELLED, JobState.CANCELLED, JobState.READY]


def test_the_form_says_beforehand_that_the_queue_stays(superuser):
    job = generation(state=JobState.READY)

    text = page_of(superuser, job)[1]

    assert "Its queue stays: its key names work of that queue." in text
    assert 'id="bw-queue"' not in text
    assert told(press(superuser, job, "move", priority="7", queue="default")) == [
        "The job's priority or queue was changed."
    ]
    assert told(press(superuser, job, "move", priority="7", queue="mail")) == [
        "Nothing was changed: the job has a key, which names work of its queue, and so its queue stays."
    ]
    assert (row(job).priority, row(job).queue) == (7, "default")
    assert 'id="bw-queue"' in superuser.get(url("job", "change", ready().pk)).content.decode()


# The keys.


def test_the_keys_tell_what_blocks_an_enqueue(superuser):
    generation("a", queue="mail")
    running = generation("b", state=JobState.READY, queue="mail")
    claim("mail", 1, worker=WORKER, lease=LEASE, using="default", now=NOW)

    text = superuser.get(url("key", "changelist")).content.decode()

    assert url("job", "change", running.pk) in text
    for word in ("running", "succeeded", "for ever", "backwave_prune --keys-idle-for", "mail"):
        assert word in text


def test_a_key_is_found_in_every_queue_that_is_known(superuser):
    wanted = {generation("a", queue=queue).queue for queue in ("b", "a", "B")}
    generation("A")
    generation("a ")

    def found(**query):
        rows = superuser.get(url("key", "changelist"), query).context["cl"].result_list
        return {(each.queue, each.key) for each in rows}

    assert found(q="a") == {(queue, "a") for queue in wanted}
    assert found(q="a", queue="B") == {("B", "a")}
    assert found(queue="b") == {("b", "a")}
    assert found(q="aa") == set()
    assert len(found()) == 5

    Job.objects.all().delete()
    assert found(q="a") == set(), "no job tells of these queues any more"
    assert found(q="a", queue="B") == {("B", "a")}


def test_all_keys_are_gone_through(superuser, monkeypatch):
    monkeypatch.setattr(KeyAdmin, "list_per_page", 4)
    for number in range(10):
        generation(f"k:{number}")

    address, seen = url("key", "changelist"), []
    while address:
        response = superuser.get(address)
        seen += [key.key for key in response.context["cl"].result_list]
        further = response.context["cl"].after_url
        address = further and url("key", "changelist") + further

    assert sorted(seen) == [f"k:{number}" for number in range(10)]


def test_the_keys_cost_the_same_however_many_there_are(superuser):
    generation("a")
    with CaptureQueriesContext(connections["default"]) as one:
        superuser.get(url("key", "changelist"))
    for number in range(30):
        generation(f"k:{number}")
    with CaptureQueriesContext(connections["default"]) as many:
        superuser.get(url("key", "changelist"))

    assert len(one) == len(many)
    assert not [each["sql"] for each in many if "COUNT(" in each["sql"]]


def test_keys_are_only_looked_at(superuser, viewer):
    job = generation()
    pk = Key.objects.get().pk
    before = everything()

    for address in (url("key", "add"), url("key", "delete", pk)):
        assert superuser.get(address).status_code == 403
        assert superuser.post(address, {"post": "yes"}).status_code == 403
    assert superuser.post(url("key", "change", pk), {"key": "x"}).status_code == 403
    assert superuser.get(url("key", "change", pk)).url == url("key", "changelist")
    for lookup in ("key__startswith=r", "job_id=1", "key=receipt:7"):
        assert superuser.get(f"{url('key', 'changelist')}?{lookup}").status_code == 400
    assert viewer.get(url("key", "changelist")).status_code == 403
    only = staff("keys-only", "view_key").get(url("key", "changelist")).content.decode()
    assert "receipt:7" in only
    assert str(job.pk) not in only

    assert everything() == before


def test_an_empty_table_of_keys(superuser):
    for query in ({}, {"q": "a"}, {"queue": "a"}):
        assert "No keys here." in superuser.get(url("key", "changelist"), query).content.decode()


@pytest.mark.slow
@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("literal", ["x'ff'", "'nonsense'"])
@pytest.mark.parametrize("model", [Key, Job])
def test_rows_written_by_hand_stop_nobody(superuser, model, literal):
    """Whatever stands in the row of a key, or of another generation: pages show what they can."""
    for field in model._meta.concrete_fields:
        other, job = generation("k"), generation("k")
        with connections["default"].cursor() as cursor:
            where = "" if model is Key else f"WHERE id = '{other.pk.hex}'"
            try:
                cursor.execute(f"UPDATE {model._meta.db_table} SET {field.column} = {literal} {where}")  # noqa: S608
            except IntegrityError:
                continue  # the database itself refuses it

        for address in (url("key", "changelist"), url("job", "change", job.pk), url("job", "changelist")):
            for query in ({}, {"key": "k"}, {"q": "k"}):
                query = {} if "change/" in address or ("key/" in address and "key" in query) else query
                assert superuser.get(address, query).status_code == 200, (field, address, query)
        if model is Job:
            assert press(superuser, job).status_code == 200, field

        Job.objects.all()._raw_delete("default")
        Key.objects.all()._raw_delete("default")
