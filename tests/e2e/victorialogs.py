"""VictoriaLogs of a test, on loopback.

No package of Debian has the program. One of Debian 13 has its source beside VictoriaMetrics': it is
built once, in a root of its own, and kept beside CI's other tools.
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

from tests.e2e.processes import call, daemon, free_ports, until
from tests.e2e.victoriametrics import answers

SOURCE = ("golang-go", "golang-github-victoriametrics-victoriametrics-dev")
# What the program imports; the package of the source asks for none of it.
IMPORTED = (
    "golang-github-victoriametrics-easyproto-dev", "golang-github-victoriametrics-metrics-dev",
    "golang-github-victoriametrics-metricsql-dev", "golang-github-valyala-fastjson-dev",
    "golang-github-valyala-fastrand-dev", "golang-github-valyala-fasttemplate-dev",
    "golang-github-valyala-histogram-dev", "golang-github-valyala-quicktemplate-dev",
    "golang-github-cespare-xxhash-dev", "golang-github-golang-snappy-dev",
    "golang-github-klauspost-compress-dev", "golang-golang-x-net-dev", "golang-golang-x-sys-dev",
    "golang-gopkg-yaml.v2-dev",
)  # fmt: skip
PROGRAM = "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-logs"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batchjob-ci"


def missing() -> str:
    """Why it can be neither run nor built, or nothing."""
    if (CACHE / "victoria-logs").exists():
        return ""
    if os.geteuid() != 0:
        return "only root makes the root in which VictoriaLogs is built"
    return "" if shutil.which("mmdebstrap") else "not installed: mmdebstrap"


def program() -> Path:
    """Minutes of building and 2 GB of disk where it is not there yet."""
    made = CACHE / "victoria-logs"
    if made.exists():
        return made
    with tempfile.TemporaryDirectory(prefix="trixie-") as folder:
        packages = ",".join((*SOURCE, *IMPORTED))
        call("mmdebstrap", "--variant=minbase", f"--include={packages}", "trixie", folder)
        environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "GOROOT": "/usr/lib/go",
            "GOPATH": "/usr/share/gocode",
            "GO111MODULE": "off", "GOTELEMETRY": "off", "CGO_ENABLED": "0",
        }  # fmt: skip
        call("chroot", folder, "go", "build", "-o", "/victoria-logs", PROGRAM, env=environ)
        CACHE.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder) / "victoria-logs", made.with_suffix(".new"))
        made.with_suffix(".new").replace(made)
    return made


class Store(NamedTuple):
    """A running one."""

    url: str

    def bulk(
        self, path: str, parameters: Mapping[str, str], lines: Sequence[Mapping[str, Any]]
    ) -> None:
        """Send lines by Elasticsearch's protocol, gzipped, as Vector's sink of that name does."""
        action = json.dumps({"index": {"_index": "vector"}})
        body = "".join(f"{action}\n{json.dumps(line)}\n" for line in lines)
        request = urllib.request.Request(
            f"{self.url}{path}_bulk?{urllib.parse.urlencode(parameters)}",
            gzip.compress(body.encode()),
            {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert not json.load(answer)["errors"]

    def query(self, logsql: str) -> list[dict[str, str]]:
        """Lines that were found."""
        body = urllib.parse.urlencode({"query": logsql}).encode()
        url = f"{self.url}/select/logsql/query"
        with urllib.request.urlopen(url, body, timeout=30) as answer:
            return [json.loads(line) for line in answer.read().splitlines()]


@contextlib.contextmanager
def store(folder: Path) -> Iterator[Store]:
    """Start one on a free port."""
    (port,) = free_ports(1)
    argv = [
        str(program()), f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}",
    ]  # fmt: skip
    folder.mkdir()
    with daemon(argv, folder / "log"):
        until(
            lambda: answers(f"http://127.0.0.1:{port}/health"), f"victoria-logs: {folder}/log", 60
        )
        yield Store(f"http://127.0.0.1:{port}")
