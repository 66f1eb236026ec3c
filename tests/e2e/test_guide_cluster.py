"""docs/guide/cluster.md and what belongs to it, typed on a clean Debian that has a Slurm.

The pages' own names and addresses are the machine's: it is 192.0.2.10, node001, slurmctl,
stats.example.org and db.example.org. Prints how long it takes from the clean machine to a job with
numbers.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
import yaml

from batchjob import __version__
from tests.e2e import booted, booted_slurm, clean_debian
from tests.e2e.reader import Reader, text
from tests.helpers.processes import call
from tests.helpers.waiting import until

pytestmark = pytest.mark.e2e

GUIDE = "docs/guide/cluster.md"
ADDRESS = "192.0.2.10"
HOSTS = f"127.0.0.1 localhost\n{ADDRESS} node001 slurmctl stats.example.org db.example.org\n"
SERVER = "https://stats.example.org:10912"
DEBIAN = (
    "prometheus", "openssl", "ca-certificates", "curl", "iproute2", "pgloader",
    "postgresql",
    *booted_slurm.PACKAGES,
)  # fmt: skip
ONE_NODE = {', "node002:10910"': ""}  # of the two that the guide has
PATIENCE_SECONDS = 120.0
GOAL_SECONDS = 600.0  # from a clean machine to the first job with numbers
SCRAPES = "scrape_configs:\n  - job_name: batchjob_exporter"
CONFIGURATION = "/etc/prometheus/prometheus.yml"


class Site(NamedTuple):
    """A machine with a Slurm, its administrator, and when it was clean."""

    machine: booted.Machine
    reader: Reader
    began: float

    def fetch(self, url: str) -> str:
        """What is answered inside, once something is."""
        argv = ("curl", "--silent", "--show-error", "--fail", url)
        until(lambda: self.machine.succeeds(*argv), f"an answer of {url}", PATIENCE_SECONDS, 0.5)
        return self.machine.run(*argv)

    def scrape_states(self) -> dict[str, str]:
        """What is wrong with each job's target, as Prometheus says; nothing where it is up."""
        told = self.machine.run("curl", "--silent", "http://127.0.0.1:9090/api/v1/targets")
        return {
            each["labels"]["job"]: ""
            if each["health"] == "up"
            else each["lastError"] or each["health"]
            for each in json.loads(told)["data"]["activeTargets"]
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, long_form: bool) -> Iterator[Site]:
    if not long_form:
        pytest.skip("only with --long: minutes of installing and measuring")
    if why_not := clean_debian.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("debian")
    clean_debian.build(folder / "dist", "deb")
    root = folder / "root"
    clean_debian.make(root, clean_debian.python_package(), *DEBIAN)
    for package in (folder / "dist").glob("*.deb"):
        shutil.copy(package, root / "root")
    (root / "etc/hosts").write_text(HOSTS)
    _certificate(root / "root", root / "usr/local/share/ca-certificates")
    with booted.machine(root) as machine:
        machine.run("ip", "address", "add", f"{ADDRESS}/24", "dev", "lo")
        machine.run("update-ca-certificates")
        began = time.monotonic()
        booted_slurm.begin(machine)
        yield Site(machine, Reader(machine), began)
    shutil.rmtree(folder, ignore_errors=True)


def _certificate(folder: Path, trusted: Path) -> None:
    """What the site's authority has issued for its server."""
    authority = trustme.CA()
    issued = authority.issue_cert("stats.example.org")
    issued.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    issued.private_key_pem.write_to_path(str(folder / "server.key"))
    (folder / "server.key").chmod(0o600)
    authority.cert_pem.write_to_path(str(trusted / "site.crt"))


@pytest.fixture(scope="module")
def token(site: Site) -> str:
    """Of the user whose job runs; all five steps of the guide are done then."""
    reader = site.reader
    booted_slurm.submit(site.machine, "while :; do seq 100000 | md5sum; sleep 1; done")
    reader.run_block(GUIDE, "apt install ./batchjob-exporter")
    reader.write_block(GUIDE, "OPTIONS=", "/etc/default/batchjob_exporter")
    assert "jobs of slurm can be seen" in reader.run_block(
        GUIDE, "systemctl enable --now batchjob_exp"
    )
    reader.write_block(
        GUIDE, "scrape_configs:\n  - job_name: batchjob_exporter", CONFIGURATION, ONE_NODE
    )
    reader.run_block(GUIDE, "promtool check config")
    reader.run_block(GUIDE, "apt install ./batchjob-server")
    reader.write_block(GUIDE, "# /etc/batchjob/stats_db.yml")
    reader.run_block(GUIDE, "runuser -u batchjob -- batchjob_stats_db")
    reader.write_block(GUIDE, "# /etc/batchjob/server.yml")
    printed = reader.run_block(GUIDE, "install -m 644 server.pem")
    return next(word for word in printed.split() if word.startswith("bj_"))


def _jobs(site: Site, token: str) -> list[dict[str, object]]:
    """Whatever the user's own command shows her."""
    environment = f"BATCHJOB_SERVER={SERVER}", f"BATCHJOB_TOKEN={token}"
    argv = ("env", *environment, "batchjob", "jobs", "--format=json")
    rows: list[dict[str, object]] = json.loads(site.machine.run(*argv))
    return rows


def test_installation_measures_first_job(site: Site, token: str) -> None:
    typed = time.monotonic() - site.began
    until(
        lambda: any(row["cpu_used_seconds"] for row in _jobs(site, token)),
        "a running job with the CPU time that was measured", PATIENCE_SECONDS, 1,
    )  # fmt: skip
    seen = time.monotonic() - site.began
    print(f"guide typed after {typed:.0f} s, numbers of the first job after {seen:.0f} s")
    row = _jobs(site, token)[0]
    assert (row["state"], row["user"]) == ("RUNNING", booted_slurm.USER)
    assert seen < GOAL_SECONDS


def test_prometheus_scrapes_all_components(site: Site, token: str) -> None:
    configuration = yaml.safe_load(text(GUIDE, SCRAPES))
    server = yaml.safe_load(text(GUIDE, "scrape_configs:\n  - job_name: batchjob_stats_server"))
    configuration["scrape_configs"] += server["scrape_configs"]
    changed = json.dumps(configuration).replace(', "node002:10910"', "")
    (site.machine.root / CONFIGURATION.lstrip("/")).write_text(changed)
    site.reader.run_block("docs/prometheus.md", "mkdir -p /etc/prometheus")
    jobs = {"batchjob_exporter", "batchjob_cluster", "batchjob_stats_server", "batchjob_stats_db"}
    try:
        until(lambda: site.scrape_states() == dict.fromkeys(jobs, ""), "all", PATIENCE_SECONDS, 1)
    except AssertionError as error:
        raise AssertionError(site.scrape_states()) from error


def test_cluster_collector(site: Site, token: str) -> None:
    page = "docs/cluster.md"
    site.machine.run("systemctl", "disable", "--now", "batchjob_cluster")
    with site.reader.start_block(page, "batchjob_exporter --collector.disable-defaults"):
        until(lambda: _is_node_shown(site), "the node", PATIENCE_SECONDS, 0.5)
    site.reader.run_block(page, "systemctl enable --now batchjob_cluster")
    until(lambda: _is_node_shown(site), "the node", PATIENCE_SECONDS, 0.5)


def _is_node_shown(site: Site) -> bool:
    return 'batchjob_cluster_nodes{state="mixed"} 1' in site.fetch("http://slurmctl:10913/metrics")


def test_user_requests_own_jobs(site: Site, token: str) -> None:
    changes = {"https://jobs.example.org": SERVER, "bj_…": token}
    site.reader.run_block("docs/jobs.md", "export BATCHJOB_SERVER=", changes)


def test_api_requests_with_token(site: Site, token: str) -> None:
    reader = Reader(site.machine, environment={"TOKEN": token})
    jobid = str(_jobs(site, token)[0]["jobid"])
    jobs = reader.run_block("docs/server.md", 'curl -H "Authorization')
    assert json.loads(jobs) == []  # none has failed
    report = reader.run_block("docs/report.md", "curl -H", {"jobs/1234": f"jobs/{jobid}"})
    assert "Efficiency" in report
    output = reader.run_block(
        "docs/prometheus_gate.md", 'curl -H "Authorization', {"https://jobs.example.org": SERVER}
    )
    (series,) = json.loads(output)["data"]["result"]
    assert series["metric"] == {"jobid": jobid}


def test_tokens_are_created_listed_and_revoked(site: Site, token: str) -> None:
    reader = Reader(site.machine, environment={"TOKEN": token})
    # The guide has made the first; this block makes two more and revokes the last.
    begin = "batchjob_stats_server --config.file=/etc/batchjob/server.yml token"
    printed = reader.run_block("docs/access.md", begin, {"tokens/7": "tokens/3"})
    assert "nightly report" in printed
    headers = f"Authorization: Bearer {token}"
    left = site.machine.run("curl", "--silent", "-H", headers, f"{SERVER}/api/v1/tokens")
    assert sorted(each["id"] for each in json.loads(left)) == [1, 2]


def test_client_certificate_identifies_user(site: Site, token: str) -> None:
    request, question = text("docs/access.md", "openssl req -new").splitlines()
    for command in (request, *AUTHORITY_OF_CLIENTS):
        site.machine.run("sh", "-ec", f"cd /root; {command}")
    server = site.machine.root / "etc/batchjob/server.yml"
    settings = yaml.safe_load(server.read_text())
    settings["auth"]["client-ca-file"] = "/etc/batchjob/clients-ca.pem"
    server.write_text(yaml.safe_dump(settings))
    site.machine.run("systemctl", "restart", "batchjob_stats_server")
    site.fetch(f"{SERVER}/-/ready")
    answer = json.loads(site.machine.run("sh", "-ec", f"cd /root; {question}"))
    assert (answer["user"], answer["role"]) == ("vera", "viewer")


AUTHORITY_OF_CLIENTS = (
    "openssl req -x509 -newkey rsa:2048 -nodes -keyout clients-ca.key -subj /CN=clients "
    "-out /etc/batchjob/clients-ca.pem",
    "openssl x509 -req -in vera.csr -CA /etc/batchjob/clients-ca.pem -CAkey clients-ca.key "
    "-CAcreateserial -days 2 -out vera.pem",
)


def test_doctor_in_the_sandbox_of_the_unit(site: Site, token: str) -> None:
    printed = site.reader.run_block("docs/doctor.md", "systemd-run --pipe --wait")
    assert "jobs of slurm can be seen" in printed


def test_drop_in_for_account_names(site: Site, token: str) -> None:
    begin = "[Service]\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_SYS_PTRACE"
    drop_in = "/etc/systemd/system/batchjob_exporter.service.d/override.conf"
    site.reader.write_block("docs/exporter.md", begin, drop_in)
    site.machine.run("systemctl", "daemon-reload")  # as `systemctl edit` does
    site.machine.run("systemctl", "restart", "batchjob_exporter")
    shown = f'account="{booted_slurm.ACCOUNT}"'
    metrics = "http://node001:10910/metrics"
    until(lambda: shown in site.fetch(metrics), "the job's account", PATIENCE_SECONDS, 1)


def test_upgrade_of_running_site(site: Site, token: str) -> None:
    """From packages that differ by their version alone."""
    before = [row["jobid"] for row in _jobs(site, token)]
    for name in ("batchjob-exporter", "batchjob-server"):
        _older(site.machine.root / "root", name)
    site.machine.run("sh", "-c", "dpkg --install /root/older/*.deb")
    version = ("dpkg-query", "--show", "--showformat=${Version}", "batchjob-server")
    assert site.machine.run(*version) == OLDER
    site.reader.run_block("docs/guide/upgrade.md", "systemctl stop batchjob_stats_db")
    assert site.machine.run(*version) == __version__
    site.fetch(f"{SERVER}/-/ready")
    assert [row["jobid"] for row in _jobs(site, token)] == before


def test_migration_from_sqlite_to_postgresql(site: Site, token: str) -> None:
    page, machine = "docs/guide/postgresql.md", site.machine
    before = {row["jobid"] for row in _jobs(site, token)}
    _start_postgresql(machine)
    create = "runuser -u postgres -- createuser --pwprompt batchjob"
    asked_twice = f"printf 'geheim\\ngeheim\\n' | {create}"
    site.reader.run_block(page, "runuser -u postgres -- createuser", {create: asked_twice})
    install = "install -m 0400 -o batchjob"
    site.reader.run_block(page, install, {install: f"echo geheim | {install}"})
    site.reader.run_block(page, "systemctl stop batchjob_stats_db")
    for name in ("stats_db.yml", "server.yml"):
        path = machine.root / "etc/batchjob" / name
        settings = yaml.safe_load(path.read_text()) | yaml.safe_load(text(page, "db:"))
        path.write_text(yaml.safe_dump(settings))
    site.reader.write_block(page, "LOAD DATABASE", f"{site.reader.folder}/jobs.load")
    assert "Total import time" in site.reader.run_block(page, "export PGPASSWORD=")
    (machine.root / "var/lib/batchjob/jobs.db").rename(machine.root / "root/jobs.db")
    site.reader.run_block(page, "runuser -u batchjob -- batchjob_stats_db")
    site.fetch(f"{SERVER}/-/ready")
    assert {row["jobid"] for row in _jobs(site, token)} >= before
    machine.run("systemctl", "start", "batchjob_backup")
    copies = machine.run("ls", "/var/backups/batchjob").split()
    assert [name for name in copies if name.endswith(".dump")]


def _start_postgresql(machine: booted.Machine) -> None:
    """As the page's first step says: over the network, by password."""
    (folder,) = (machine.root / "etc/postgresql").glob("*/main")
    with (folder / "postgresql.conf").open("a") as file:
        file.write(f"listen_addresses = 'localhost,{ADDRESS}'\n")
    with (folder / "pg_hba.conf").open("a") as file:
        file.write(f"host batchjob batchjob {ADDRESS}/32 scram-sha-256\n")
    machine.run("systemctl", "restart", "postgresql")


OLDER = "0.0.1"


def _older(folder: Path, name: str) -> None:
    """Repack a package as an older version."""
    tree = folder / "older" / name
    tree.parent.mkdir(exist_ok=True)
    call("dpkg-deb", "--raw-extract", str(next(folder.glob(f"{name}_*.deb"))), str(tree))
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace(__version__, OLDER))
    call("dpkg-deb", "-Znone", "--build", str(tree), f"{tree}.deb")
    shutil.rmtree(tree)
