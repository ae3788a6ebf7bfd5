"""Celery on RabbitMQ or Redis, by its own command: prefork, no results, acknowledged early, as by default."""

from __future__ import annotations

from celery import Celery
from redis import Redis

from benchmarks.apps import broker_url, namespace
from benchmarks.stamps import record

QUEUE = namespace()

app = Celery("benchmarks", broker=broker_url())
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
if broker_url().startswith("redis"):
    app.conf.broker_transport_options = {"global_keyprefix": f"{namespace()}:"}


@app.task(name="noop")
def noop(number: int) -> None:
    """Run."""
    record(number)


def enqueue(number: int) -> None:
    """Enqueue one job."""
    noop.delay(number)


def clean() -> None:
    """Remove the queue, which RabbitMQ would keep, and the keys in Redis."""
    if broker_url().startswith("redis"):
        with Redis.from_url(broker_url()) as client:
            for key in client.scan_iter(f"{namespace()}:*"):
                client.delete(key)
        return
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(QUEUE)
        connection.default_channel.exchange_delete(QUEUE)
