"""Tasks with and without schedules, by Django's decorator and by ours."""

from datetime import timedelta

from crontask import cron
from django.tasks import task
from django_scheduled_tasks import periodic_task

from django_backwave import job


@task
def add(a, b):
    return a + b


@task(queue_name="mail", backend="mail", takes_context=True)
def greet(context, name):
    return [context.attempt, name]


@task
async def later(value):
    return value


@job(max_attempts=2)
def fail():
    raise ValueError("no stock")


@cron("0 0 * * Mon")
@task
def weekly():
    return "done"


@periodic_task(interval=timedelta(minutes=1))
@task
def every_minute():
    return "done"


@periodic_task(interval=timedelta(hours=1))
@job(name="hourly", priority=7)
def every_hour():
    return "done"
