"""VictoriaLogs for a test, on loopback.

No Debian package contains the program, but a source package of Debian 13 does. It is built once, in
a separate root file system, and cached with the other tools of CI.
"""

import contextlib
import gzip
import json
import os
import shutil
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.victoriametrics import responds_with_200
from tests.helpers.processes import call, daemon, free_ports
from tests.helpers.waiting import scaled, until

SOURCE_PACKAGES = ("golang-go", "golang-github-victoriametrics-victoriametrics-dev")
# Go packages that the program imports; the source package does not depend on them.
IMPORTED_PACKAGES = (
    "golang-github-victoriametrics-easyproto-dev", "golang-github-victoriametrics-metrics-dev",
    "golang-github-victoriametrics-metricsql-dev", "golang-github-valyala-fastjson-dev",
    "golang-github-valyala-fastrand-dev", "golang-github-valyala-fasttemplate-dev",
    "golang-github-valyala-histogram-dev", "golang-github-valyala-quicktemplate-dev",
    "golang-github-cespare-xxhash-dev", "golang-github-golang-snappy-dev",
    "golang-github-klauspost-compress-dev", "golang-golang-x-net-dev", "golang-golang-x-sys-dev",
    "golang-gopkg-yaml.v2-dev",
)  # fmt: skip
GO_PACKAGE = "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-logs"
CACHE_DIRECTORY = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batchjob-ci"


def missing() -> str:
    """The reason why it can be neither run nor built; empty if it can."""
    if (CACHE_DIRECTORY / "victoria-logs").exists():
        return ""
    if os.geteuid() != 0:
        return "building VictoriaLogs needs root"
    return "" if shutil.which("mmdebstrap") else "not installed: mmdebstrap"


def built_program() -> Path:
    """Path of the program; the first build takes minutes and 2 GB of disk."""
    binary = CACHE_DIRECTORY / "victoria-logs"
    if binary.exists():
        return binary
    with tempfile.TemporaryDirectory(prefix="trixie-") as folder:
        packages = ",".join((*SOURCE_PACKAGES, *IMPORTED_PACKAGES))
        call("mmdebstrap", "--variant=minbase", f"--include={packages}", "trixie", folder)
        environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "GOROOT": "/usr/lib/go",
            "GOPATH": "/usr/share/gocode",
            "GO111MODULE": "off", "GOTELEMETRY": "off", "CGO_ENABLED": "0",
        }  # fmt: skip
        call("chroot", folder, "go", "build", "-o", "/victoria-logs", GO_PACKAGE, env=environ)
        CACHE_DIRECTORY.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder) / "victoria-logs", binary.with_suffix(".new"))
        binary.with_suffix(".new").replace(binary)
    return binary


class VictoriaLogs(NamedTuple):
    """A running VictoriaLogs."""

    url: str

    def send_bulk(
        self, path: str, parameters: Mapping[str, str], lines: Sequence[Mapping[str, Any]]
    ) -> None:
        """Send gzipped lines with the Elasticsearch bulk API, as Vector's sink does."""
        action = json.dumps({"index": {"_index": "vector"}})
        body = "".join(f"{action}\n{json.dumps(line)}\n" for line in lines)
        request = urllib.request.Request(
            f"{self.url}{path}_bulk?{urllib.parse.urlencode(parameters)}",
            gzip.compress(body.encode()),
            {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"},
        )
        with urllib.request.urlopen(request, timeout=scaled(30)) as response:
            assert not json.load(response)["errors"]

    def query(self, logsql: str) -> list[dict[str, str]]:
        """Log lines that match a LogsQL query."""
        body = urllib.parse.urlencode({"query": logsql}).encode()
        url = f"{self.url}/select/logsql/query"
        with urllib.request.urlopen(url, body, timeout=scaled(30)) as response:
            return [json.loads(line) for line in response.read().splitlines()]


@contextlib.contextmanager
def store(folder: Path) -> Iterator[VictoriaLogs]:
    """Start VictoriaLogs on a free port."""
    (port,) = free_ports(1)
    argv = [
        str(built_program()), f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
    ]  # fmt: skip
    folder.mkdir()
    with daemon(argv, folder / "log"):
        until(
            lambda: responds_with_200(f"http://127.0.0.1:{port}/health"),
            f"victoria-logs: {folder}/log",
            60,
        )
        yield VictoriaLogs(f"http://127.0.0.1:{port}")
