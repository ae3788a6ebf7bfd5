"""``manage.py backwave_manifest``: what stored jobs depend on in the code, kept in a file and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_backwave import manifest
from django_backwave.discovery import discover

if TYPE_CHECKING:
    from django_backwave.manifest import Manifest

_WRITE = "manage.py backwave_manifest --write"


class Command(BaseCommand):
    """Prints the manifest of this code, writes it to a file, or compares it with one. Needs no database."""

    help = (
        "Print what stored jobs depend on in this code: names, schemas, signatures, queues, keys. With "
        "--check, end with 1 if that differs from what a committed file says."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options, one of which may be given."""
        add = parser.add_mutually_exclusive_group().add_argument
        add("--write", metavar="FILE", type=Path, help="Write it to this file.")
        add(
            "--check",
            metavar="FILE",
            type=Path,
            help="Compare it with this file, and end with 1 if they differ.",
        )

    def handle(self, **options: Any) -> None:
        """Discover the jobs as a worker does; then print, write or compare."""
        try:
            discover()
        except ImportError as error:
            raise CommandError(str(error)) from error
        code = manifest.of_code()
        if options["write"] is not None:
            self._write(code, options["write"])
        elif options["check"] is not None:
            self._check(code, options["check"])
        else:
            self.stdout.write(manifest.dumps(code), ending="")

    def _write(self, code: Manifest, file: Path) -> None:
        try:
            file.write_text(manifest.dumps(code), encoding="utf-8", newline="\n")
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}.") from error
        self.stdout.write(f"Wrote {file}: {_jobs(code)}.")

    def _check(self, code: Manifest, file: Path) -> None:
        committed = _read(file)
        if committed == code:
            self.stdout.write(f"{file} is up to date: {_jobs(code)}.")
            return
        breaches = manifest.breaches(committed, code)
        for line in breaches:
            self.stderr.write(line)
        if breaches:
            raise CommandError(
                f"{file} has what this code breaks. If no stored job depends on that any more, run: "
                f"{_WRITE} {file}"
            )
        raise CommandError(f"{file} is out of date; stored jobs are safe. Run: {_WRITE} {file}")


def _read(file: Path) -> Manifest:
    try:
        return manifest.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(
            f"{file} cannot be read: {error.strerror}. For a first one run: {_WRITE} {file}"
        ) from error
    except ValueError as error:
        raise CommandError(f"{file} is no manifest: {error}. Run: {_WRITE} {file}") from error


def _jobs(code: Manifest) -> str:
    return f"{len(code)} job{'' if len(code) == 1 else 's'}"
