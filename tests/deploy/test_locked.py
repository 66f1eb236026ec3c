"""Lock files pin what packages and images install, with the hashes of the files."""

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
PROJECT_NAME = canonicalize_name(PROJECT["project"]["name"])
FILES = sorted(LOCKED.glob("*.txt"))


def locked_versions(name):
    """Versions by distribution in a lock file, one for each range of Python versions."""
    locked = {}
    for line in (LOCKED / f"{name}.txt").read_text().splitlines():
        if match := re.match(r"(\S+)==(\S+)", line):
            locked.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return locked


def expanded_requirements(requirements):
    """The requirements, with the project's own extras replaced by what they require."""
    for text in requirements:
        each = Requirement(text)
        if canonicalize_name(each.name) == PROJECT_NAME:
            for extra in each.extras:
                yield from expanded_requirements(EXTRAS[extra])
        else:
            yield each


def transitive_requirements(requirements, seen):
    """The requirements and, recursively, those of the installed distributions."""
    for each in requirements:
        if canonicalize_name(each.name) in seen:
            continue
        seen.add(canonicalize_name(each.name))
        yield each
        names = [*each.extras, ""]
        dependencies = map(Requirement, distribution(each.name).requires or ())
        applicable = [
            dependency
            for dependency in dependencies
            if not dependency.marker
            or any(dependency.marker.evaluate({"extra": name}) for name in names)
        ]
        yield from transitive_requirements(applicable, seen)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_entry_has_version_and_hashes_but_no_url(path):
    entries = path.read_text().replace("\\\n", "").splitlines()[1:]
    for entry in entries:
        assert re.fullmatch(r"\S+==\S+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+", entry), entry
    assert "://" not in path.read_text()


@pytest.mark.parametrize("name", SETS)
def test_lock_contains_all_requirements_of_its_extras(name):
    locked = locked_versions(name)
    base_requirements = PROJECT["project"]["dependencies"]
    for extra in SETS[name]:
        for each in transitive_requirements(
            expanded_requirements([*base_requirements, *EXTRAS[extra]]), set()
        ):
            versions = locked.get(canonicalize_name(each.name))
            assert versions, f"{each} of [{extra}] is not in {name}.txt"
    for each in expanded_requirements(
        [*base_requirements, *(text for extra in SETS[name] for text in EXTRAS[extra])]
    ):
        for version in locked[canonicalize_name(each.name)]:
            assert each.specifier.contains(version), f"{each}: {version}: run deploy.packages.lock"


def test_every_extra_except_test_is_locked():
    (everything, *_) = SETS
    locked = locked_versions(everything)
    for extra, requirements in EXTRAS.items():
        if extra != "test":
            missing = [
                each.name
                for each in expanded_requirements(requirements)
                if canonicalize_name(each.name) not in locked
            ]
            assert missing == [], extra


def test_all_locks_have_the_same_versions():
    (everything, *others) = SETS
    locked = locked_versions(everything)
    for name in (*others, BACKEND):
        for distribution_name, versions in locked_versions(name).items():
            assert versions <= locked[distribution_name]


def test_build_requirements_are_locked():
    locked = locked_versions(BACKEND)
    for each in expanded_requirements(PROJECT["build-system"]["requires"]):
        assert canonicalize_name(each.name) in locked


def test_packages_and_images_install_from_lock():
    assert {package.extra for package in PACKAGES} <= SETS.keys()
    for path in (ROOT / "deploy/containers").glob("*.Containerfile"):
        text = path.read_text()
        for command in re.findall(r"pip install (.*?)(?: \\|$)", text, re.MULTILINE):
            assert "--require-hashes" in command or "--no-index" in command
        for name in re.findall(r"deploy/locked/(\w+).txt", text):
            assert (LOCKED / f"{name}.txt").exists()


def test_locks_are_in_the_docker_build_context():
    assert "!deploy/locked" in (ROOT / ".dockerignore").read_text().splitlines()
