"""The token that `batchjob up` creates at each start."""

import stat

from batchjob_cli.client.running_up import TOKEN_FILE, keep_file
from batchjob_cli.up.stack import create_token
from batchjob_stats_db.database.tokens import TokenRole


def test_token_is_an_admins_and_new_at_each_start():
    start_token = create_token("me")
    assert (start_token.user, start_token.role) == ("me", TokenRole.ADMIN)
    assert start_token.text != create_token("me").text


def test_token_file_is_private_and_removed_at_stop(tmp_path):
    start_token = create_token("me")
    with keep_file(tmp_path / TOKEN_FILE, start_token.text):
        (file,) = tmp_path.iterdir()
        assert file.read_text() == f"{start_token.text}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(tmp_path.iterdir())


def test_token_file_of_later_start_is_kept(tmp_path):
    first, second = (create_token("me") for _ in range(2))
    with keep_file(tmp_path / TOKEN_FILE, first.text):
        (tmp_path / TOKEN_FILE).write_text(second.text)
    assert (tmp_path / TOKEN_FILE).read_text() == second.text
