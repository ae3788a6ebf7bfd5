"""The rules that keep the package's shape: who writes, who reads clocks, what the core imports.

The layers are import-linter's part (`make check`). These tests read the source and follow each name
to where it was imported from, so that `from time import monotonic as now` hides nothing.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import django_backwave

PACKAGE = Path(django_backwave.__file__).parent

# Methods that write rows; Django's asynchronous ones have the same names with an "a" in front.
# Dictionaries and sets merge with `|=` and not with `update`, so that none is taken for a queryset.
WRITING_METHODS = {
    "bulk_create",
    "bulk_update",
    "create",
    "delete",
    "get_or_create",
    "save",
    "update",
    "update_or_create",
}
# The same, and what locks rows, sends SQL or opens a transaction.
WRITING_CALLS = {
    *WRITING_METHODS,
    *(f"a{name}" for name in WRITING_METHODS),
    "atomic",
    "cursor",
    "execute",
    "executemany",
    "select_for_update",
}
# The core cannot reach a database at all, as other tests here show, and may use these names.
MAY_WRITE = ("store/", "migrations/", "core/")
# File → the calls it may make although it is no writer, and why.
WRITING_EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "management/commands/backwave_worker.py": ({"execute"}, "a command's `execute`, and no cursor's"),
    "testing/autocommit.py": ({"cursor", "execute"}, "savepoints of a test, in the place of transactions"),
}

# What gives another answer each time: clocks, chance and identity, as prefixes of full names.
IMPURE = (
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "django.utils.crypto.get_random_string",
    "django.utils.timezone.now",
    "os.getrandom",
    "os.urandom",
    "random.",
    "secrets.",
    "time.monotonic",
    "time.perf_counter",
    "time.process_time",
    "time.time",
    "uuid.uuid",
)
# File or folder → why it may: everybody else is handed an instant, a random number or an id.
IMPURE_EXCEPTIONS = {
    "ids.py": "makes the ids of jobs",
    "store/clock.py": "asks for the time where the database is a file and its clock is ours",
    "worker/": "the shell that feeds the pure driver with time and chance",
}

# The only module that knows where Django keeps its tasks, so that a backport needs one change.
TASKS_MODULE = "compat.py"
TASKS = ("django.tasks", "django_tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One place where a module uses something."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of each module of the package, by its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(), str(path))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imports(tree: ast.Module) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield each import: statement, local name, full dotted name (with dots first if relative)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds `a`; only `import a.b as c` binds `a.b`.
                local = alias.asname or alias.name.partition(".")[0]
                yield node, local, alias.name if alias.asname else local
                if not alias.asname and "." in alias.name:
                    yield node, alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node, alias.asname or alias.name, f"{module}.{alias.name}"


def dotted(node: ast.AST) -> str | None:
    """Return `a.b.c` for an expression of just names and dots, else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return None


def uses(file: str, tree: ast.Module) -> Iterator[Use]:
    """Yield every imported thing that a module uses, by its full dotted name."""
    origins = {local: origin for _, local, origin in imports(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
            first, _, rest = name.partition(".")
            if first in origins:
                full = f"{origins[first]}.{rest}" if rest else origins[first]
                yield Use(file=file, line=node.lineno, name=full)


def last_name(node: ast.expr) -> str:
    """Return the name that a call goes by: `b` for `a.b()` and for `b()`."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def writing_calls() -> Iterator[Use]:
    """Yield the calls that write, outside the folders that may."""
    for file, tree in modules().items():
        if file.startswith(MAY_WRITE):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and last_name(node.func) in WRITING_CALLS:
                yield Use(file=file, line=node.lineno, name=last_name(node.func))
        for use in uses(file, tree):
            # As a decorator it is not called here, and opens a transaction all the same.
            if use.name == "django.db.transaction.atomic":
                yield Use(file=file, line=use.line, name="atomic")


def impure_uses() -> Iterator[Use]:
    """Yield the uses of clocks, chance and identity."""
    for file, tree in modules().items():
        for use in uses(file, tree):
            if use.name.startswith(IMPURE):
                yield use


def listed(found: Iterator[Use] | list[Use]) -> list[str]:
    """Return uses as readable lines, each once."""
    return sorted({str(use) for use in found})


def test_every_module_has_a_docstring() -> None:
    assert len(modules()) > 1
    assert [file for file, tree in modules().items() if not ast.get_docstring(tree)] == []


def test_core_does_not_load_django() -> None:
    """The package's own `__init__` loads with it, and so must be lazy."""
    names = [
        "django_backwave." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file in modules()
        if file.startswith("core/")
    ]
    assert names

    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=PACKAGE.parent, text=True)

    assert "django_backwave" in loaded.split()
    assert {"django", "asgiref", "psycopg"}.isdisjoint(loaded.split())


def test_core_imports_only_the_standard_library_and_itself() -> None:
    found = [
        Use(file=file, line=node.lineno, name=origin)
        for file, tree in modules().items()
        if file.startswith("core/")
        for node, _, origin in imports(tree)
        if origin.partition(".")[0] not in sys.stdlib_module_names
        # One dot is the core itself, two are the package around it.
        and not f"{origin}.".startswith("django_backwave.core.")
        and (not origin.startswith(".") or origin.startswith(".."))
    ]

    assert listed(found) == []


def test_only_the_store_writes() -> None:
    found = [
        use for use in writing_calls() if use.name not in WRITING_EXCEPTIONS.get(use.file, (set(), ""))[0]
    ]

    assert listed(found) == []


def test_nothing_waits_for_a_commit() -> None:
    """A job is a row of the caller's transaction (G1), so there is nothing to do after it."""
    found = [
        Use(file=file, line=node.lineno, name="on_commit")
        for file, tree in modules().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute | ast.Name) and last_name(node) == "on_commit")
        or (isinstance(node, ast.alias) and node.name == "on_commit")
    ]

    assert listed(found) == []


def test_clocks_and_chance_have_their_places() -> None:
    found = [use for use in impure_uses() if not use.file.startswith(tuple(IMPURE_EXCEPTIONS))]

    assert listed(found) == []


def test_django_tasks_is_imported_in_one_place() -> None:
    found = []
    for file, tree in modules().items():
        names = [(node.lineno, origin) for node, _, origin in imports(tree)]
        # Also what is imported by name, as a string.
        names += [
            (node.args[0].lineno, node.args[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
            and last_name(node.func) in {"import_module", "import_string", "__import__"}
        ]
        found += [
            Use(file=file, line=line, name=name)
            for line, name in names
            if file != TASKS_MODULE and f"{name}.".startswith(tuple(f"{task}." for task in TASKS))
        ]

    assert listed(found) == []


@pytest.mark.parametrize("file", [*WRITING_EXCEPTIONS, *IMPURE_EXCEPTIONS])
def test_no_exception_outlives_its_reason(file: str) -> None:
    """An entry in a list above that nobody needs any more would let the next mistake pass."""
    used = {(use.file, use.name) for use in writing_calls()}
    allowed = WRITING_EXCEPTIONS.get(file, (set(), ""))[0]

    assert {name for name in allowed if (file, name) not in used} == set()
    if file in IMPURE_EXCEPTIONS:
        assert any(use.file.startswith(file) for use in impure_uses())
