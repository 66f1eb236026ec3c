"""The token of a start."""

import stat

import pytest
from sqlalchemy.engine import make_url

from batchjob_cli.client.running_up import TOKEN_FILE, keep_file
from batchjob_cli.up import token
from batchjob_stats_db.database.tokens import TokenRole


@pytest.mark.parametrize(
    ("url", "role", "can_make_tokens"),
    [("sqlite:////tmp/jobs.db", TokenRole.ADMIN, True),
     ("postgresql+psycopg://site/jobs", TokenRole.VIEWER, False)],
)  # fmt: skip
def test_it_is_an_admin_s_in_a_database_of_one_s_own_alone(url, role, can_make_tokens):
    made = token.create_token("me", make_url(url))
    assert (made.user, made.role, made.can_make_tokens) == ("me", role, can_make_tokens)
    assert made.text != token.create_token("me", make_url(url)).text


def test_its_file_is_the_owner_s_and_goes_with_the_stop(tmp_path):
    made = token.create_token("me", make_url("sqlite:///jobs.db"))
    with keep_file(tmp_path / TOKEN_FILE, made.text):
        (file,) = tmp_path.iterdir()
        assert file.read_text() == f"{made.text}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(tmp_path.iterdir())


def test_the_file_of_a_later_start_stays(tmp_path):
    first, second = (token.create_token("me", make_url("sqlite:///jobs.db")) for _ in range(2))
    with keep_file(tmp_path / TOKEN_FILE, first.text):
        (tmp_path / TOKEN_FILE).write_text(second.text)
    assert (tmp_path / TOKEN_FILE).read_text() == second.text
