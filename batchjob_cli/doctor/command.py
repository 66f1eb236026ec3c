"""`batchjob doctor`: reports what this node offers to the exporter, and what is missing."""

import argparse
import sys
from itertools import pairwise

from batchjob.runtime.formatting import replace_non_utf8
from batchjob.runtime.settings import Parser
from batchjob.schedulers.layout import Layout
from batchjob_cli.doctor import bundle
from batchjob_cli.doctor.finding import ExaminedNode
from batchjob_cli.doctor.report import as_json, as_text, examine, jobs_visible
from batchjob_exporter.options import EnabledCollector, parse_settings
from collectors.jobs.discovery.site_layouts import all_layouts

_DESCRIPTION = """\
Checks what this node provides to the exporter and what is missing.

Also accepts all flags of batchjob_exporter (--config.file, --path.cgroupfs,
--web.listen-address ...) and examines the node as the exporter would.

Exit status: 0 if jobs can be seen, 1 if not, 2 for wrong usage."""


def run(arguments: list[str]) -> int:
    """Print the report. Raises SettingsError for a wrong flag or file."""
    parser = Parser(
        prog="batchjob doctor",
        description=_DESCRIPTION,
        usage="batchjob doctor [--json] [--bundle FILE] [FLAG OF batchjob_exporter ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="write the report as JSON")
    parser.add_argument("--bundle", default="", metavar="FILE",
                        help="write a redacted file for a bug report instead")  # fmt: skip
    doctor_options, exporter_flags = parser.parse_known_args(arguments)
    chosen = parse_settings(exporter_flags)
    node = ExaminedNode(
        chosen.host,
        _layouts(chosen.collectors),
        chosen.web.listen_address,
        {each.entry.name: each.options for each in chosen.collectors},
    )
    results, visible = examine(node), jobs_visible(node)
    report = (as_json if doctor_options.json else as_text)(results, visible)
    if doctor_options.bundle:
        bundle.write(
            doctor_options.bundle,
            replace_non_utf8(report),
            arguments,
            _config_files(exporter_flags),
        )
        print(
            f"{doctor_options.bundle}: names, addresses and secrets are replaced; "
            "read it before you send it"
        )
    else:
        sys.stdout.write(replace_non_utf8(report))  # cgroup paths may contain any bytes
    return 0 if visible else 1


def _config_files(flags: list[str]) -> tuple[str, ...]:
    """Files of settings on the command line."""
    name = "--config.file"
    joined = [flag.removeprefix(f"{name}=") for flag in flags if flag.startswith(f"{name}=")]
    return (*joined, *(path for flag, path in pairwise(flags) if flag == name))


def _layouts(collectors: tuple[EnabledCollector, ...]) -> tuple[Layout, ...]:
    """The site's own layouts come first, as in the exporter."""
    jobs = [each.options for each in collectors if each.entry.name == "jobs"]
    return all_layouts(jobs[0].layouts if jobs else ())
