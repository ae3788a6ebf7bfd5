"""dramatiq on RabbitMQ or Redis, started by its own command; nothing but its default middleware."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

from benchmarks.apps import broker_url, namespace
from benchmarks.stamps import record

QUEUE = namespace()
if broker_url().startswith("redis"):
    broker: dramatiq.Broker = RedisBroker(url=broker_url(), namespace=namespace())
else:
    broker = RabbitmqBroker(url=broker_url())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def noop(number: int) -> None:
    """Run."""
    record(number)


def enqueue(number: int) -> None:
    """Enqueue one job."""
    noop.send(number)


def disconnect() -> None:
    """Disconnect."""
    broker.close()


def clean() -> None:
    """Remove the queues, which RabbitMQ would keep, and the keys in Redis."""
    if isinstance(broker, RedisBroker):
        for key in broker.client.scan_iter(f"{namespace()}*"):
            broker.client.delete(key)
        return
    for suffix in ("", ".DQ", ".XQ"):
        broker.channel.queue_delete(QUEUE + suffix)
