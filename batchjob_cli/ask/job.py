"""`batchjob job`: the report of one job."""

import sys
from urllib.parse import quote

from batchjob_cli.ask.asked import asked, good, parser
from batchjob_cli.ask.table import show


def run(arguments: list[str]) -> int:
    """Print the report; the exit status. Raises SettingsError."""
    made = parser("job", "What a job used, how well it used what it had, and what to do better.")
    add = made.add_argument
    add("id", help="as the scheduler writes it; of a local run the first characters will do")
    add("--cluster", help="where several clusters have jobs of this id")
    add("--format", choices=("text", "json", "markdown", "html"), default="text")
    given = made.parse_args(arguments)
    parameters = {"format": given.format}
    if given.cluster:
        parameters["cluster"] = given.cluster
    with asked(given) as ask:
        answer = good(ask(f"jobs/{quote(given.id, safe='')}/report", parameters))
    text = answer.body.decode()
    if given.format in ("text", "markdown"):
        show(text.rstrip("\n"))
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")
    return 0
