"""The test that runs each shell block of the documentation, or what running the block needs.

    python -m tests.documented_blocks

writes docs/blocks.md from the table below; tests/test_documented_commands.py reads every block with
a shell and the programs' own command lines, and checks that the table and the page are complete.
"""

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.generated_pages import generated_comment, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/blocks.md"


class Coverage(StrEnum):
    """How a test covers a block."""

    TYPED = "typed"  # a test runs the text of the page
    DONE = "done"  # a test runs the same commands, with its own paths and names
    READ = "read"  # only parsed, by a shell and the programs' command lines; running it needs more


class BlockRun(NamedTuple):
    """How a block is run; `by` is the file of a test, or what running it needs."""

    how: Coverage
    by: str
    long: bool = False  # only in the long form of the test


def _typed(test: str, *, long: bool = False) -> BlockRun:
    return BlockRun(Coverage.TYPED, f"tests/{test}.py", long)


def _done(test: str, *, long: bool = False) -> BlockRun:
    return BlockRun(Coverage.DONE, f"tests/{test}.py", long)


def _needs(what: str) -> BlockRun:
    return BlockRun(Coverage.READ, what)


_SHELL_BLOCKS = _typed("test_shell_blocks")
_PACKAGES = _typed("e2e/test_packages")
_ONE_NODE = _typed("e2e/test_guide_one_node", long=True)
_CLUSTER = _typed("e2e/test_guide_cluster", long=True)
_ANSIBLE = _typed("e2e/test_guide_ansible", long=True)
_KUBERNETES = "a Kubernetes cluster"
_PBS = "a PBS with its hook"
_RELEASED = _typed("e2e/test_release", long=True)
_RELEASE = "a release on PyPI; from a checkout the guides install the same"
_REGISTRY = "a registry of images"
# By page: the beginning of each shell block, in the order of the page.
RUNS: Mapping[str, Mapping[str, BlockRun]] = {
    "README.md": {
        "python3 -m venv .venv && .venv/bin/pip install '.[all]'": _typed("e2e/first_command"),
        ".venv/bin/batchjob run --name first": _SHELL_BLOCKS,
        "python3 -m venv .venv && .venv/bin/pip install -e": BlockRun(Coverage.TYPED, ".ci/run"),
    },
    "docs/access.md": {
        "batchjob_stats_server --config.file=/etc/batchjob/server.yml token": _CLUSTER,
        "openssl req -new": _CLUSTER,
    },
    "docs/ansible.md": {"cd deploy/ansible": _done("e2e/test_guide_ansible", long=True)},
    "docs/cluster.md": {
        "batchjob_exporter --collector.disable-defaults": _CLUSTER,
        "systemctl enable --now batchjob_cluster": _CLUSTER,
    },
    "docs/development.md": {"python -m tests.regenerate": _done("test_regenerate")},
    "docs/doctor.md": {"systemd-run --pipe --wait": _CLUSTER},
    "docs/exporter.md": {
        "python3 -m venv /opt/batchjob": _ONE_NODE,
        "cp deploy/systemd/batchjob_exporter.service": _ONE_NODE,
    },
    "docs/gpu.md": {
        "scontrol reconfigure": _done("e2e/test_slurm_gpu_prolog"),
        "batchjob_exporter --once --once.wait=15s": _needs("an NVIDIA GPU"),
    },
    "docs/grafana.md": {
        "cp grafana/provisioning": _typed("grafana/test_provisioning"),
        "python -m grafana.generate": _done("grafana/test_dashboards"),
    },
    "docs/guide/cluster.md": {
        "apt install ./batchjob-exporter": _CLUSTER,
        "systemctl enable --now batchjob_exporter": _CLUSTER,
        "promtool check config": _CLUSTER,
        "apt install ./batchjob-server": _CLUSTER,
        "runuser -u batchjob -- batchjob_stats_db": _CLUSTER,
        "install -m 644 server.pem": _CLUSTER,
    },
    "docs/guide/one_node.md": {
        "python3 -m venv .venv": _ONE_NODE,
        ".venv/bin/batchjob_exporter --once": _SHELL_BLOCKS,
        ".venv/bin/batchjob_exporter --web.listen-address": _ONE_NODE,
    },
    "docs/guide/postgresql.md": {
        "runuser -u postgres -- createuser": _CLUSTER,
        "install -m 0400 -o batchjob": _CLUSTER,
        "systemctl stop batchjob_stats_db": _CLUSTER,
        "export PGPASSWORD=": _CLUSTER,
        "runuser -u batchjob -- batchjob_stats_db": _CLUSTER,
    },
    "docs/file_systems.md": {"lctl set_param -P jobid_var=": _needs("a Lustre file system")},
    "docs/guide/proxy.md": {"openssl rand -hex 32": _PACKAGES},
    "docs/guide/upgrade.md": {
        "systemctl stop batchjob_stats_db": _CLUSTER,
        "pip install '.[docs]'": _done("e2e/test_documentation_site"),
    },
    "docs/ipmi.md": {"groupadd --system ipmi": _needs("a BMC")},
    "docs/jobs.md": {
        "batchjob jobs   ": _SHELL_BLOCKS,
        "export BATCHJOB_SERVER=": _CLUSTER,
        "batchjob completion bash": _SHELL_BLOCKS,
    },
    "docs/kubernetes.md": {
        "podman build -f deploy/containers/exporter": _needs(f"{_REGISTRY}, and {_KUBERNETES}"),
        "kubectl -n hpc exec": _needs(_KUBERNETES),
        "kubectl -n hpc create secret": _needs(_KUBERNETES),
    },
    "docs/logs.md": {"install -m 644": _needs("Vector")},
    "docs/kernel.md": {
        "systemctl enable --now batchjob_helper.socket": _needs("systemd with the package"),
    },
    "docs/packages.md": {
        "apt install python3-venv": _done("e2e/test_packages"),
        "minisign -Sm": _typed("deploy/test_signing"),
        "minisign -Vm": _typed("deploy/test_signing"),
        "apt install ./batchjob-exporter": _PACKAGES,
        "runuser -u batchjob": _PACKAGES,
        "podman build": _done("e2e/test_containers"),
    },
    "docs/performance.md": {"python -m benchmarks.scrape": _needs("a machine that does no more")},
    "docs/prometheus.md": {"mkdir -p /etc/prometheus": _CLUSTER},
    "docs/prometheus_gate.md": {'curl -H "Authorization': _CLUSTER},
    "docs/release.md": {
        "VERSION=1.0.0": _RELEASED,
        "git clone --branch": _RELEASED,
        "twine upload": _RELEASED,
        "mkdir -p apt": _RELEASED,
        "podman build -f deploy/containers/exporter.Containerfile -t \"reg": _needs(_REGISTRY),
        "install -m 644 batchjob.asc": _RELEASED,
    },
    "docs/report.md": {"curl -H": _CLUSTER},
    "docs/messages.md": {
        "batchjob notify": _done("batchjob_cli/client/test_notify"),
    },
    "docs/run.md": {
        "batchjob run --name train": _SHELL_BLOCKS,
        "batchjob run --gpus 1": _done("batchjob_cli/run/test_run_gpus"),
        "export BATCHJOB_SERVER=": _done("security/test_remote_runs"),
    },
    "docs/samples.md": {
        "$ batchjob metrics 7b1e": _done("batchjob_cli/test_metrics_command"),
        "batchjob metrics 7b1e --json": _typed("batchjob_cli/test_metrics_command"),
        "curl -H": _done("batchjob_stats_server/api/test_samples_route"),
        "rclone copy": _needs("rclone"),
        "rclone cat": _needs("rclone"),
        "zcat FILE": _typed("batchjob_cli/test_metrics_command"),
    },
    "docs/schedulers/pbs.md": {
        'qmgr -c "export hook': _needs(_PBS),
        'qmgr -c "import hook': _needs(_PBS),
    },
    "docs/schedulers/slurm.md": {"for scope in": _done("e2e/test_slurm_cgroup2_uml")},
    "docs/server.md": {
        "pip install 'batchjob-monitoring": _needs(_RELEASE),
        'curl -H "Authorization': _CLUSTER,
    },
    "docs/stats_db.md": {
        "pip install 'batchjob-monitoring": _needs(_RELEASE),
        "systemctl enable --now batchjob_backup.timer": _PACKAGES,
        "systemctl stop batchjob_stats_server": _PACKAGES,
    },
    "docs/up.md": {
        "batchjob up": _done("e2e/test_up"),
        "systemctl --user enable": _ANSIBLE,
    },
    "docs/user.md": {"batchjob job 1234 --script": _done("batchjob_cli/client/test_ask")},
    "docs/victoriametrics.md": {
        "cd /usr/share/batchjob": _ANSIBLE,
        "kubectl create namespace": _needs(_KUBERNETES),
    },
}  # fmt: skip

_MEANINGS = {
    Coverage.TYPED: "a test runs the text of the page",
    Coverage.DONE: "a test runs the same commands with its own paths and names",
    Coverage.READ: "only parsed; running it needs more than the tests have",
}


def page() -> str:
    """The text of docs/blocks.md: all blocks by page, and how each is run."""
    all_runs = [run for blocks in RUNS.values() for run in blocks.values()]
    count_rows = (
        (how.value, str(sum(run.how is how for run in all_runs)), _MEANINGS[how])
        for how in Coverage
    )
    rows = (
        (name.removeprefix("docs/"), f"`{begin.strip()} …`", run.how.value, _format_by(run))
        for name, blocks in RUNS.items()
        for begin, run in blocks.items()
    )
    parts = [
        "# Blocks of the documentation",
        generated_comment("tests.documented_blocks"),
        f"The {len(all_runs)} shell blocks of the documentation, and the tests that run them. A "
        "test parses every block with a shell and with the command lines of batchjob's programs; "
        "blocks in other languages (YAML, PromQL, SQL …) are parsed by the programs that they "
        "are for.",
        table(("How", "Blocks", "Meaning"), count_rows),
        table(("Page", "Block", "How", "Test, or what it needs"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def _format_by(run: BlockRun) -> str:
    text = run.by if run.how is Coverage.READ else f"`{run.by}`"
    return f"{text} (`--long`)" if run.long else text


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
