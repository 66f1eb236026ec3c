"""Options from flags and files, and how their defaults are shown."""

import argparse
import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.settings import (
    Parser,
    SettingsError,
    add_flags,
    build_section,
    format_default,
    load_file,
    option,
    options_of,
    parse_flags,
    suggest_names,
    suggest_nearest,
)
from batchjob.runtime.values import duration


@dataclass(frozen=True)
class Options:
    """Some of each kind."""

    linger: float = option(300.0, "Time.", parse=duration)
    ratio: float = option(0.5, "Ratio.")
    most: int = option(7, "Most.")
    names: tuple[str, ...] = option(("a", "b"), "Names.", repeat=True)
    steps: bool = option(False, "Steps.")
    path: str = option("", "Path.")
    in_file: str = option("x", "In the file.", flag=False, key="in_file")


SECTIONS = {"jobs": Options}


def test_defaults_are_formatted_as_in_the_file():
    assert {each.name: format_default(each) for each in options_of(SECTIONS)} == {
        "jobs.linger": "5m",
        "jobs.ratio": "0.5",
        "jobs.most": "7",
        "jobs.names": "a, b",
        "jobs.steps": "off",
        "jobs.path": "",
        "jobs.in_file": "x",
    }


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, "0s"), (90.0, "90s"), (86400.0, "1d"), (0.25, "250ms")]
)
def test_default_duration_is_shown_in_largest_exact_unit(seconds, shown):
    options = dataclass(frozen=True)(
        type("O", (), {"__annotations__": {"t": float}, "t": option(seconds, "T.", parse=duration)})
    )
    assert [format_default(each) for each in options_of({"": options})] == [shown]


def options_from_flags(*arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, SECTIONS)
    return build_section(Options, "jobs", parse_flags(parser, list(arguments)))


def test_flags():
    assert options_from_flags() == Options()
    assert options_from_flags(
        "--jobs.linger=1m", "--jobs.steps", "--jobs.names=x", "--jobs.names=y"
    ) == (Options(linger=60.0, steps=True, names=("x", "y")))
    assert options_from_flags("--no-jobs.steps") == Options()


def test_file_only_option_is_not_a_flag():
    with pytest.raises(SettingsError, match=r"unknown flag --jobs\.in_file"):
        options_from_flags("--jobs.in_file=y")


def options_from_file(tmp_path, content):
    path = tmp_path / "options.yml"
    path.write_text(content)
    return build_section(Options, "jobs", load_file(str(path), SECTIONS, extra_keys=("jobs",)))


@pytest.mark.parametrize(
    "content",
    [
        "jobs: {linger: 1m, names: [x], in_file: y}",
        "jobs.linger: 60\njobs.names: x\njobs.in_file: y",
        "jobs:\n  linger: 60s\njobs.names: [x]\njobs.in_file: y",
    ],
)
def test_nested_and_dotted_keys_in_file(tmp_path, content):
    assert options_from_file(tmp_path, content) == Options(linger=60.0, names=("x",), in_file="y")


def test_key_may_be_both_switch_and_prefix(tmp_path):
    path = tmp_path / "options.yml"
    path.write_text("jobs: false\njobs.most: 3\n")
    assert load_file(str(path), SECTIONS, extra_keys=("jobs",)) == {"jobs": False, "jobs.most": 3}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "jobs:\n  lingr: 5m\n",
            r"options.yml:2: unknown key jobs.lingr; did you mean jobs.linger",
        ),
        ("\n\njobs.most: -1\n", r"options.yml:3: jobs.most: expected a whole number"),
        ("jobs.steps: 'yes'\n", r"options.yml:1: jobs.steps: expected true or false"),
        ("jobs.names: [1]\n", r"options.yml:1: jobs.names: expected text"),
    ],
)
def test_file_error_names_line(tmp_path, content, message):
    with pytest.raises(SettingsError, match=message):
        options_from_file(tmp_path, content)


@given(st.text())
def test_any_file_content_loads_or_raises_settings_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("settings") / "options.yml"
    path.write_text(content, encoding="utf-8", errors="replace")
    with contextlib.suppress(SettingsError):
        load_file(str(path), SECTIONS)


def test_suggest_names():
    keys = ["cpu_seconds", "cpu_efficiency", "energy", *map(str, range(20))]
    assert suggest_names("cpu", keys) == "; did you mean cpu_seconds or cpu_efficiency?"
    assert suggest_names("enrgy", keys) == "; did you mean energy?"
    assert suggest_names("zz", ["a", "b"]) == "; expected one of a, b"
    assert suggest_names("zz", keys).startswith("; expected a name such as cpu_seconds, cpu_effi")
    assert suggest_names("", keys).count(",") == 4


@pytest.mark.parametrize("value", ["-5d", "-1h30m", "-.5", "-2026"])
def test_flag_value_may_begin_with_minus(value):
    parser = Parser()
    parser.add_argument("--since")
    assert parser.parse_args(["--since", value]).since == value


def test_suggest_nearest():
    assert suggest_nearest("lingr", ["linger", "most"]) == "; did you mean linger?"
    assert suggest_nearest("completely else", ["linger", "most"]) == ""
