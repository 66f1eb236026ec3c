"""Options of `batchjob up`: flags, and a file with the same names."""

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_cli.up.options import settings


def test_flags_override_file(tmp_path):
    file = tmp_path / "up.yml"
    file.write_text("data: /srv/batchjob\nruns:\n  remote: true\nlog.level: info\ninterval: 9s\n")
    chosen = settings([f"--config.file={file}", "--interval=5s"])
    assert (chosen.up.data, chosen.runs.remote, chosen.log.level) == ("/srv/batchjob", True, "info")
    assert chosen.up.interval == 5.0
    assert settings([]).log.level == "info"


def test_every_metrics_group_can_be_enabled():
    assert settings([]).up.metrics == ()
    assert settings(["--metrics=open-files", "--metrics=all"]).up.metrics == ("open-files", "all")
    with pytest.raises(SettingsError, match=r"metrics: expected one of .*open-files"):
        settings(["--metrics=weather"])


@pytest.mark.parametrize("text", ["color: red", "runs.remote: perhaps", "- data"])
def test_invalid_file_is_named(tmp_path, text):
    file = tmp_path / "up.yml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"up\.yml"):
        settings([f"--config.file={file}"])
