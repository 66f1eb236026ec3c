"""What packages and images install is locked: each version, with the sums of its files."""

import re
import tomllib
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.packages.contents import PACKAGES, ROOT
from deploy.packages.lock import BACKEND, LOCKED, SETS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
OURS = canonicalize_name(PROJECT["project"]["name"])
FILES = sorted(LOCKED.glob("*.txt"))


def locked(name):
    """Distribution -> the versions that a file has, one for each range of Pythons."""
    found = {}
    for line in (LOCKED / f"{name}.txt").read_text().splitlines():
        if match := re.match(r"(\S+)==(\S+)", line):
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


def wanted(requirements):
    """What is asked for by name, extras of our own taken apart."""
    for text in requirements:
        each = Requirement(text)
        if canonicalize_name(each.name) == OURS:
            for extra in each.extras:
                yield from wanted(EXTRAS[extra])
        else:
            yield each


def closure(requirements, seen):
    """Also what those want that are installed here."""
    for each in requirements:
        if canonicalize_name(each.name) in seen:
            continue
        seen.add(canonicalize_name(each.name))
        yield each
        names = [*each.extras, ""]
        below = map(Requirement, distribution(each.name).requires or ())
        chosen = [
            more
            for more in below
            if not more.marker or any(more.marker.evaluate({"extra": name}) for name in names)
        ]
        yield from closure(chosen, seen)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_version_has_sums_and_no_place(path):
    entries = path.read_text().replace("\\\n", "").splitlines()[1:]
    for entry in entries:
        assert re.fullmatch(r"\S+==\S+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+", entry), entry
    assert "://" not in path.read_text()


@pytest.mark.parametrize("name", SETS)
def test_all_that_an_extra_wants_is_there(name):
    found = locked(name)
    basis = PROJECT["project"]["dependencies"]
    for extra in SETS[name]:
        for each in closure(wanted([*basis, *EXTRAS[extra]]), set()):
            versions = found.get(canonicalize_name(each.name))
            assert versions, f"{each} of [{extra}] is not in {name}.txt"
    for each in wanted([*basis, *(text for extra in SETS[name] for text in EXTRAS[extra])]):
        for version in found[canonicalize_name(each.name)]:
            assert each.specifier.contains(version), f"{each}: {version}: run deploy.packages.lock"


def test_every_extra_but_that_of_tests_is_locked():
    (everything, *_) = SETS
    found = locked(everything)
    for extra, requirements in EXTRAS.items():
        if extra != "test":
            missing = [
                each.name
                for each in wanted(requirements)
                if canonicalize_name(each.name) not in found
            ]
            assert missing == [], extra


def test_the_same_versions_everywhere():
    (everything, *others) = SETS
    found = locked(everything)
    for name in (*others, BACKEND):
        for distribution_name, versions in locked(name).items():
            assert versions <= found[distribution_name]


def test_what_builds_wheels_is_locked():
    found = locked(BACKEND)
    for each in wanted(PROJECT["build-system"]["requires"]):
        assert canonicalize_name(each.name) in found


def test_packages_and_images_install_what_is_locked():
    assert {package.extra for package in PACKAGES} <= SETS.keys()
    for path in (ROOT / "deploy/containers").glob("*.Containerfile"):
        text = path.read_text()
        for command in re.findall(r"pip install (.*?)(?: \\|$)", text, re.MULTILINE):
            assert "--require-hashes" in command or "--no-index" in command
        for name in re.findall(r"deploy/locked/(\w+).txt", text):
            assert (LOCKED / f"{name}.txt").exists()


def test_images_are_sent_what_is_locked():
    assert "!deploy/locked" in (ROOT / ".dockerignore").read_text().splitlines()
