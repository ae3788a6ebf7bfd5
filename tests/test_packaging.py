"""What a release consists of fits together."""

from __future__ import annotations

import tomllib
from pathlib import Path

import django_backwave

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_package_and_distribution_have_one_version() -> None:
    assert django_backwave.__version__ == PROJECT["version"]


def test_changelog_has_a_section_for_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()

    assert f"\n## [{PROJECT['version']}]" in changelog


def test_package_says_that_it_is_typed() -> None:
    assert (Path(django_backwave.__file__).parent / "py.typed").is_file()


def test_dependencies_have_no_upper_bound() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]

    assert [line for group in groups for line in group if "<" in line or "==" in line] == []
