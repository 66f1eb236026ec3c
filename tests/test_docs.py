"""The documentation and the units are consistent with the programs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from batchjob_exporter.options import parse_settings, parser
from collectors.collector import COLLECTORS
from tests.generated_pages import PAGES

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name):
    page = (REPOSITORY / "docs" / name).read_text()
    assert page == PAGES[name](), "run: python -m tests.generated_pages"


def test_every_flag_is_documented():
    page = (REPOSITORY / "docs" / "options.md").read_text()
    flags = [action.option_strings[-1] for action in parser()._actions]
    names = {re.sub("^--(no-)?", "", flag) for flag in flags}
    assert {
        name for name in names if f"`{name}`" not in page and f"`--{name}`" not in page
    } == set()


@pytest.mark.parametrize("entry", COLLECTORS, ids=lambda entry: entry.name)
def test_metric_names_and_help_follow_conventions(entry):
    for metric in entry.load().metrics:
        assert metric.name.startswith("batchjob_"), metric.name
        assert metric.name.endswith("_total") == (metric.type == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        assert not {"job", "instance", "cluster"} & set(metric.labels), metric.name


@pytest.mark.parametrize("page", sorted((REPOSITORY / "docs").glob("*.md")), ids=lambda p: p.name)
def test_link_targets_exist(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


OPTION_FILES = [
    (page.name, block)
    for page in sorted((REPOSITORY / "docs").glob("*.md"))
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    if block.startswith("collector.")
]


@pytest.mark.parametrize(("page", "block"), OPTION_FILES)
def test_documented_option_file_is_accepted(page, block, tmp_path):
    (tmp_path / "exporter.yml").write_text(block)
    assert parse_settings([f"--config.file={tmp_path}/exporter.yml"])


# The exporter reads processes of all users, and BMCs; the helper asks the kernel; vmagent and
# vmalert are VictoriaMetrics'.
MAX_EXPOSURE = {"batchjob_exporter": 22, "batchjob_helper": 18, "vmagent": 30, "vmalert": 30}
UNITS = sorted((REPOSITORY / "deploy").glob("*/*.service"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_valid_and_hardened(unit, tmp_path):
    # The program is not installed at the path in the unit; everything else is checked.
    text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit.read_text())
    copy = tmp_path / unit.name
    copy.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    verification = subprocess.run(command, capture_output=True, text=True, check=False)
    assert unit.name not in verification.stderr
    max_exposure = MAX_EXPOSURE.get(unit.stem, 13)
    flags = ("--offline=true", f"--threshold={max_exposure}")
    command = ["systemd-analyze", "security", *flags, str(copy)]
    rating = subprocess.run(command, capture_output=True, text=True, check=False)
    assert rating.returncode == 0, rating.stdout[-300:]
