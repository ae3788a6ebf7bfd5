"""The registry: stored job name → task."""

from __future__ import annotations

import types

import pytest

from django_backwave.exceptions import DuplicateJobName
from django_backwave.jobs import BackWaveTask
from django_backwave.registry import Registry, binds, resolve
from tests.api import handlers


def function(path: str):
    """Return a new function that seems to be defined at a module path."""
    made = types.FunctionType((lambda: None).__code__, {})
    made.__module__, _, made.__qualname__ = path.rpartition(".")
    return made


def task(path: str, name: str | None = None, aliases: tuple[str, ...] = ()) -> BackWaveTask:
    return BackWaveTask.unchecked(func=function(path), job_name=name or path, aliases=aliases)


def test_a_task_is_found_by_its_name_and_its_aliases():
    registry = Registry()
    pay = task("shop.jobs.pay", "pay", ("shop.pay", "shop.tasks.pay"))

    registry.register(pay)

    assert registry.names() == ["pay", "shop.pay", "shop.tasks.pay"]
    assert {registry.resolve(name) for name in registry.names()} == {pay}
    assert registry.tasks() == [pay]
    assert registry.resolve("shop.jobs.pay") is None


def test_the_same_function_may_register_again():
    """A copy with other options for one enqueue is no new definition."""
    registry = Registry()
    pay = task("shop.jobs.pay")
    copy = BackWaveTask.unchecked(func=pay.func, job_name="shop.jobs.pay", priority=5)

    registry.register(pay)
    registry.register(copy)

    assert registry.resolve("shop.jobs.pay") is pay


def test_a_reloaded_module_replaces_its_functions_under_all_their_names():
    """Nothing of the old function remains, not even a name that the new one has dropped."""
    registry = Registry()
    registry.register(task("shop.jobs.pay", "pay", ("old",)))
    registry.register(task("shop.jobs.ship"))
    reloaded = task("shop.jobs.pay", "pay-order")

    registry.register(reloaded)

    assert registry.names() == ["pay-order", "shop.jobs.ship"]
    assert registry.resolve("pay-order") is reloaded


@pytest.mark.parametrize("aliases", [(), ("pay",)], ids=["name", "alias"])
def test_two_functions_cannot_claim_one_name(aliases):
    """The message names both functions and says what to do; the registry stays as it was."""
    registry = Registry()
    pay = task("shop.jobs.pay", "pay")
    registry.register(pay)

    with pytest.raises(DuplicateJobName) as caught:
        registry.register(task("bar.jobs.pay", "bar" if aliases else "pay", aliases))

    assert str(caught.value) == (
        "Job name 'pay' is claimed by shop.jobs.pay and by bar.jobs.pay. Give one of them another "
        "name, @job(name=...), or take the name out of its aliases."
    )
    assert registry.names() == ["pay"]
    assert registry.resolve("pay") is pay


def test_defining_a_job_registers_it():
    """A worker finds what code defined, by the stored name and by former ones."""
    assert resolve("tests.api.handlers.echo") is handlers.echo
    assert resolve("send-receipt") is handlers.send_receipt
    assert resolve("shop.send_receipt") is handlers.send_receipt
    assert resolve("tests.api.handlers.send_receipt") is None


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((7,), {}, None),
        ((), {"order_id": 7, "copy": True}, None),
        ((), {}, "missing a required argument: 'order_id'"),
        ((7, 8), {}, "too many positional arguments"),
        ((7,), {"colour": 1}, "got an unexpected keyword argument 'colour'"),
        ((7,), {"context": 1}, "multiple values for argument 'context'"),
        ((7,), {1: 2}, "keywords must be strings"),
    ],
)
def test_binds_says_why_arguments_do_not_fit(args, kwargs, reason):
    assert binds(handlers.send_receipt, args, kwargs) == reason
