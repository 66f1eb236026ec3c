"""A server over a small database: two clusters, three users, a coordinator, an operator."""

import datetime as dt
import ipaddress
import shutil

import pytest
from fastapi.testclient import TestClient

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import (
    Account,
    Association,
    Associations,
    JobRecord,
    NodeShare,
    Role,
)
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.measure.rollup import due_days, roll_up
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.options import AuthOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from collectors.emissions.options import EmissionsOptions
from tests.batchjob_stats_server.authority import Authority, pem

NOW = 1_775_300_000
SECRET = "correct horse battery staple"
PROXY = "192.0.2.10"


def record(jobid, **fields):
    """An ended job of alice's; `fields` say what is otherwise."""
    given = {
        "cluster": "c1",
        "submit_time": NOW - 7200,
        "state": JobState.COMPLETED,
        "source": "sacct",
        "user": "alice",
        "uid": 1001,
        "account": "physics",
        "partition": "cpu",
        "name": "train",
        "start_time": NOW - 7000,
        "end_time": NOW - 3400,
        "elapsed_seconds": 3600,
        "allocated_cpus": 4,
        "allocated_nodes": 1,
        "node_list": "n001",
        "nodes": (NodeShare("n001", 4, 8 << 30, None),),
        **fields,
    }
    return JobRecord(jobid=jobid, state_word=given["state"].value, **given)


LIVE = {"state": JobState.RUNNING, "end_time": None}
JOBS = (
    record("1"),
    record("1", submit_time=NOW - 900, start_time=NOW - 800, end_time=NOW - 700),
    record("2", user="bob", account="chem", start_time=NOW - 6000, name="=cmd()"),
    record("3", user="carol", start_time=NOW - 5000, nodes=(NodeShare("n002"),), **LIVE),
    record("5", array_jobid="4", array_index=7, start_time=NOW - 4000),
    record("7", het_jobid="6", het_offset=1, start_time=NOW - 3000),
    record("8", state=JobState.PENDING, start_time=None, end_time=None, elapsed_seconds=None),
    record("9", state=JobState.CANCELLED, start_time=None, elapsed_seconds=0),
    record("0f3a2b1c-aaaa-4bbb-8ccc-123456789abc", start_time=NOW - 2000, elapsed_seconds=60),
)
ELSEWHERE = record("1", cluster="c2", account="x", start_time=NOW - 100, state=JobState.FAILED)
PEOPLE = Associations(
    (
        Association("c1", "physics", "alice", Role.MEMBER, True),
        Association("c1", "chem", "bob", Role.MEMBER, True),
        Association("c1", "physics", "dave", Role.COORDINATOR),
    ),
    (),
    (
        Account("c1", "physics", "root"),
        Account("c1", "chem", "root"),
    ),
)


def fill(engine):
    """Make tables, jobs, people and sums."""
    migrate(engine)
    store = Store(engine, "c1", UsagePolicy(), clock=lambda: NOW)
    store.write(Batch(JOBS, (), "", 0), "s")
    store.write_associations(PEOPLE, "people")
    Store(engine, "c2", UsagePolicy(), clock=lambda: NOW).write(Batch((ELSEWHERE,), (), "", 0), "s")
    with engine.begin() as db:
        for cluster in ("c1", "c2"):
            for day in due_days(db, cluster, 10):
                roll_up(db, cluster, day, NOW)
    engine.dispose()


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """The file of the database."""
    path = tmp_path_factory.mktemp("server") / "jobs.db"
    fill(writer_engine(parse_url(f"sqlite:///{path}"), create=True))
    return path


@pytest.fixture
def now():
    return NOW


@pytest.fixture
def path(filled, tmp_path):
    """A copy of it for one test."""
    return shutil.copy(filled, tmp_path / "jobs.db")


@pytest.fixture(scope="session")
def site_authority():
    """The CA of clients' certificates."""
    return Authority("the site", dt.datetime.fromtimestamp(NOW, dt.UTC))


@pytest.fixture
def database_url(path):
    """The URL of the database; tests in postgresql/ have another."""
    return f"sqlite:///{path}"


@pytest.fixture
def services(database_url, tmp_path, site_authority):
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "clients.pem").write_bytes(pem(site_authority.certificate))
    auth = AuthOptions(
        trusted_peer=(ipaddress.ip_network(PROXY),),
        secret_file=str(tmp_path / "secret"),
        client_ca_file=str(tmp_path / "clients.pem"),
        viewer=("vera",),
        admin=("root",),
    )
    settings = ServerSettings(
        DatabaseOptions(database_url),
        ServerWebOptions(threads=4, allowed_host=("testserver",)),
        auth,
        EmissionsOptions(provider=("owid:FR",)),
    )
    made = build(settings)._replace(clock=lambda: NOW)
    yield made
    made.reader.dispose()
    made.writer.dispose()


@pytest.fixture
def client(services):
    """Somebody on the network without any identity."""
    with TestClient(app.make(services), client=("203.0.113.5", 50000)) as made:
        yield made


@pytest.fixture
def proxied(client, services):
    """Asks as Grafana does: `proxied("alice").get("/api/v1/me")`."""

    def ask(user):
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}
        return TestClient(app.make(services), client=(PROXY, 50000), headers=headers)

    return ask


@pytest.fixture
def certified(services, site_authority):
    """Asks with a certificate: `certified("vera", "viewer").get("/api/v1/me")`."""

    def ask(user, unit):
        certificate, _ = site_authority.issue(("CN", user), ("OU", unit))
        told = {"tls": {"client_cert_chain": [pem(certificate).decode()]}}
        made = app.make(services)

        async def over_tls(scope, receive, send):
            await made({**scope, "extensions": told}, receive, send)

        return TestClient(over_tls, client=("203.0.113.5", 50000))

    return ask


@pytest.fixture
def token(services):
    """Makes tokens: the header to send."""

    def make(user, role=TokenRole.USER, **more):
        with services.writer.begin() as db:
            text = tokens.create(db, user, role, "test", NOW - 10, **more)
        return {"Authorization": f"Bearer {text}"}

    return make
