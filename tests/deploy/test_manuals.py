"""Manual pages and completion say what the programs accept."""

import shutil
import subprocess

import pytest

from batchjob_cli.main import COMMANDS
from deploy.packages import manuals
from deploy.packages.contents import EXPORTER, SERVER

PAGES = manuals.manuals(EXPORTER.documented() | SERVER.documented())


def test_every_command_has_a_page():
    assert set(PAGES) == {
        "batchjob.1", "batchjob_exporter.1", "batchjob_stats_db.1", "batchjob_stats_server.1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("batchjob_exporter.1", ["\\-\\-web.listen\\-address", "\\-\\-collector.jobs.linger"]),
        ("batchjob_stats_db.1", ["\\-\\-db.url", "backfill", "forget"]),
        ("batchjob_stats_server.1", ["\\-\\-web.tls\\-cert\\-file"]),
        ("batchjob.1", [command.name for command in COMMANDS]),
    ],
)
def test_a_page_names_its_flags(page, words):
    assert [word for word in words if word not in PAGES[page]] == []


@pytest.mark.parametrize("package", [EXPORTER, SERVER], ids=lambda package: package.name)
def test_bash_reads_its_completions(package):
    for name, text in manuals.completions(package.documented(), "bash").items():
        assert f"-F _shtab_{name} {name}" in text
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_prints_a_page(tmp_path):
    page = tmp_path / "batchjob_exporter.1"
    page.write_text(PAGES[page.name])
    done = subprocess.run(["man", "-l", str(page)], capture_output=True, text=True, check=True)
    assert "--web.listen-address" in done.stdout
