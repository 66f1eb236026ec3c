"""`batchjob notify`: what to be told of one's jobs, and how."""

from typing import Any

from batchjob.runtime.settings import SettingsError
from batchjob_cli.client.answer import parse_document, parse_rows, require_success
from batchjob_cli.client.connect import command_parser, reachable_server
from batchjob_cli.client.problems import DONE
from batchjob_cli.client.table import TableColumn, cell, format_table, print_text
from batchjob_cli.jobs import print_json

_COLUMNS = ("id", "event", "channel", "target", "cluster", "jobid", "account", "quiet_hours")
_CHANNELS = ("webhook", "ntfy")


def run(arguments: list[str]) -> int:
    """List the subscriptions, or change one; the exit status. Raises SettingsError."""
    parser = command_parser(
        "notify", "Lists what you are told of your jobs, or subscribes to an event."
    )
    add = parser.add_argument
    add(
        "event", nargs="?", default="",
        help="end, failure, started, idle=30m (GPUs), memory=90%% or digest (each week)",
    )  # fmt: skip
    add("--job", default="", help="only this job")
    add("--cluster", default="", help="only jobs on this cluster")
    add("--account", default="", help="account of a digest, which its coordinators may have")
    add("--webhook", default="", metavar="URL", help="a webhook instead of mail")
    add("--ntfy", default="", metavar="TOPIC", help="a topic of ntfy instead of mail")
    add("--off", action="store_true", help="send nothing, whatever the site's default")
    add("--quiet-hours", default="", metavar="HH:MM-HH:MM", help="hours without messages")
    add("--remove", type=int, metavar="ID", help="remove a subscription")
    add("--format", choices=("table", "json"), default="table", help="output format of the list")
    given = parser.parse_args(arguments)
    server = reachable_server(given)
    if server is None:
        raise SettingsError("--server: expected the URL of a server, which keeps the subscriptions")
    if given.remove is not None:
        require_success(server.request("DELETE", f"subscriptions/{given.remove}", {}))
    elif given.event:
        body = {"event": given.event, "jobid": given.job, **_place(given)}
        body |= {name: getattr(given, name) for name in ("cluster", "account", "quiet_hours")}
        made = parse_document(server.request("POST", "subscriptions", {}, body), "webhook_key")
        if made["webhook_key"]:
            print(f"key of the signatures: {made['webhook_key']}")
    else:
        rows = parse_rows(server("subscriptions", {}), _COLUMNS)
        if given.format == "json":
            print_json(rows)
        else:
            _print_table(rows, parse_document(server("messages", {}), "channels", "defaults"))
    return DONE


def _place(given: Any) -> dict[str, str]:
    """The channel and its target; raises SettingsError if several are given."""
    found = [(name, getattr(given, name)) for name in _CHANNELS if getattr(given, name)]
    found += [("off", "")] if given.off else []
    if len(found) > 1:
        raise SettingsError("expected one of --webhook, --ntfy and --off")
    channel, target = found[0] if found else ("mail", "")
    return {"channel": channel, "target": target}


def _print_table(rows: list[dict[str, Any]], offer: dict[str, Any]) -> None:
    if not offer["channels"]:
        print("This site sends no messages.")
        return
    if rows:
        columns = [
            TableColumn(name.replace("_", " ").upper(), cell(name, lambda value: str(value) or "-"))
            for name in _COLUMNS
        ]
        print_text(format_table(columns, rows))
    defaults = ", ".join(offer["defaults"]) or "nothing"
    print(f"Without a subscription for it, you are told by mail of: {defaults}.")
