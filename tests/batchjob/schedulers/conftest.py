"""Accounting files in a temporary directory."""

import pytest

from batchjob.schedulers.lsf.accounting import lsb_acct
from batchjob.schedulers.pbs.accounting import pbs_log
from batchjob.schedulers.pbs.accounting.pbs_log import PbsLog


@pytest.fixture
def write_log(tmp_path):
    """`write_log(text, day="20261120")` writes a daily file and returns the source."""
    source = PbsLog(
        "c1", pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="UTC"), clock=lambda: 0.0
    )

    def write(content, day="20261120"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / day).write_bytes(data)
        return source

    return write


@pytest.fixture
def write_acct(tmp_path):
    """`write_acct(text, "lsb.acct.1")` writes a file and returns the source of lsb.acct."""

    def write(text, name="lsb.acct"):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return lsb_acct.build("c1", lsb_acct.EventFileOptions(path=str(tmp_path / "lsb.acct")))

    return write
