"""`batchjob up` for other machines: TLS, and certificates of an admin, a viewer and neither."""

import contextlib
import datetime as dt
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import trustme

from tests.batchjob_stats_server.authority import Authority, pem, write_pair
from tests.helpers.processes import end, run
from tests.helpers.waiting import until
from tests.private_keys import write_key

ROOT = Path(__file__).parents[2]


class RemoteUp(NamedTuple):
    """Its URL and data; `<name>.pem` in the folder has the certificate and key of a user."""

    url: str
    folder: Path
    token: str
    process: subprocess.Popen[bytes]

    def log(self) -> str:
        return (self.folder / "log").read_text()


def start(
    folder: Path, address: str, *flags: str, command_prefix: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    """Start `batchjob up`, and wait for its token; `command_prefix` is a command that starts it."""
    argv = [
        *command_prefix, sys.executable, "-m", "batchjob_cli", "up", f"--data={folder / 'data'}",
        f"--listen-address={address}", *flags,
    ]  # fmt: skip
    site = folder / "run.yml"
    site.touch()
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            argv, stdout=log, stderr=log, cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT), "BATCHJOB_RUN_CONFIG": str(site)},
        )  # fmt: skip
    token = folder / "data" / "token"
    try:
        until(lambda: process.poll() is not None or token.exists(), f"up: {folder / 'log'}", 60)
        assert process.poll() is None, (folder / "log").read_text()
    except BaseException:
        end(process)
        raise
    return process


@contextlib.contextmanager
def remote_server(
    folder: Path, host: str, port: int, command_prefix: tuple[str, ...] = ()
) -> Iterator[RemoteUp]:
    """Run `batchjob up`: ada and bob are admins, vera is a viewer, and nemo has no role."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = ca.issue_cert(host)
    write_key(server, str(folder / "server.key"))
    server.cert_chain_pems[0].write_to_path(str(folder / "server.crt"))
    clients = Authority("site", dt.datetime.now(dt.UTC))
    (folder / "clients.pem").write_bytes(pem(clients.certificate))
    for name, *units in (("ada", "admin"), ("bob", "admin"), ("vera", "viewer"), ("nemo",)):
        subject = [("CN", name), *(("OU", unit) for unit in units)]
        write_pair(folder, name, *clients.issue(*subject))
    process = start(
        folder, f"{host}:{port}", "--runs.remote",
        f"--web.tls-cert-file={folder / 'server.crt'}",
        f"--web.tls-key-file={folder / 'server.key'}",
        f"--auth.client-ca-file={folder / 'clients.pem'}", command_prefix=command_prefix,
    )  # fmt: skip
    token = (folder / "data" / "token").read_text().strip()
    try:
        yield RemoteUp(f"https://{host}:{port}", folder, token, process)
    finally:
        end(process)


def run_cli(
    remote: RemoteUp, *arguments: str, who: str = "ada", command_prefix: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run `batchjob ...` as on another machine: without local data, with a certificate."""
    connection = {
        "BATCHJOB_SERVER": remote.url, "BATCHJOB_CA_FILE": str(remote.folder / "ca.pem"),
        "BATCHJOB_CERT_FILE": str(remote.folder / f"{who}.pem") if who else "",
    }  # fmt: skip
    return run(
        [*command_prefix, sys.executable, "-m", "batchjob_cli", *arguments],
        timeout=90,
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": "/nonexistent",
            "BATCHJOB_DATA": "/nonexistent/data",
            **connection,
            **environment,
        },
    )
