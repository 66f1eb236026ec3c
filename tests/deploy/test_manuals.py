"""Manual pages and shell completions list what the programs accept."""

import re
import shutil
import subprocess
import sys

import pytest

from batchjob_cli import manuals
from batchjob_cli.completion import PROGRAMS, SHELLS, prepared
from batchjob_cli.main import COMMANDS, main
from deploy.packages.contents import EXPORTER, SERVER
from tests.helpers.processes import run

PAGES = manuals.manuals(EXPORTER.documented() | SERVER.documented())


def test_every_program_has_a_manual_page():
    assert set(PAGES) == {
        "batchjob.1", "batchjob_exporter.1", "batchjob_helper.1", "batchjob_stats_db.1",
        "batchjob_stats_server.1",
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
def test_manual_page_lists_options_and_commands(page, words):
    assert [word for word in words if word not in PAGES[page]] == []


@pytest.mark.parametrize("package", [EXPORTER, SERVER], ids=lambda package: package.name)
def test_bash_completions_have_valid_syntax(package):
    for name, text in manuals.completions(package.documented(), "bash").items():
        assert f"-F _shtab_{name} {name}" in text
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_renders_page(tmp_path):
    page = tmp_path / "batchjob_exporter.1"
    page.write_text(PAGES[page.name])
    done = subprocess.run(["man", "-l", str(page)], capture_output=True, text=True, check=True)
    assert "--web.listen-address" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_command_prints_valid_script(shell, capsys):
    """The shell, if it is installed, accepts what `batchjob completion` prints."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in ("jobs", "completion", "doctor"):
        assert command in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_prepared_completion_has_every_command_and_option(shell):
    """`python -m tests.regenerate` writes it."""
    made = manuals.completions({"batchjob": PROGRAMS["batchjob"]}, shell)["batchjob"]
    words = set(re.findall(r"-{0,2}[a-z][a-z-]+", made))
    assert words - set(re.findall(r"-{0,2}[a-z][a-z-]+", prepared(shell).read_text())) == set()


def test_completion_imports_no_command():
    program = "import sys; from batchjob_cli.main import main; main(['completion', 'bash']); "
    program += "sys.exit(str([name for name in sys.modules if 'stats' in name or name == 'shtab']))"
    done = run([sys.executable, "-c", program], timeout=60)
    assert done.stderr.strip() == "[]"


def test_bash_completes_option_of_a_command(capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    completion_request = (
        "COMP_WORDS=(batchjob jobs --pend); COMP_CWORD=2; COMP_LINE='batchjob jobs --pend'"
    )
    bash_input = f"{script}\n{completion_request}; _shtab_batchjob; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash"], input=bash_input, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--pending"]


def test_manual_command_writes_and_prints_pages(tmp_path, capsys):
    assert main(["manual", "--directory", str(tmp_path / "man1")]) == 0
    assert {path.name for path in (tmp_path / "man1").iterdir()} == set(PAGES)
    assert main(["manual", "batchjob_exporter"]) == 0
    assert ".TH" in capsys.readouterr().out
