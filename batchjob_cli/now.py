"""`batchjob` without a command: the user's jobs at present, and what to change."""

from batchjob.local_runs.directory import data_directory
from batchjob_cli.client.answer import require_success
from batchjob_cli.client.connect import command_parser, reachable_server
from batchjob_cli.client.table import fold, print_text, terminal_width


def run(arguments: list[str]) -> int:
    """Print them; the exit status. Raises SettingsError."""
    given = command_parser("", "Shows your jobs at present.").parse_args(arguments)
    query = reachable_server(given)
    if query is None:
        from batchjob_cli.client import local_job

        text = local_job.present_text(data_directory(given.data))
    else:
        text = require_success(query("now", {})).body.decode()
    print_text(fold(text.rstrip("\n"), terminal_width()))
    print_text("\n`batchjob --help` lists the commands.")
    return 0
