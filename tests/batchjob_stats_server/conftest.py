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
from collectors.emissions.site_factors import EmissionsOptions
from tests.batchjob_stats_server.authority import Authority, pem

NOW = 1_775_300_000
SECRET = "correct horse battery staple"
PROXY = "192.0.2.10"


def job_record(jobid, **fields):
    """An ended job of alice's, with other values for `fields`."""
    values = {
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
    return JobRecord(jobid=jobid, state_word=values["state"].value, **values)


RUNNING = {"state": JobState.RUNNING, "end_time": None}
JOBS = (
    job_record("1"),
    job_record("1", submit_time=NOW - 900, start_time=NOW - 800, end_time=NOW - 700),
    job_record("2", user="bob", account="chem", start_time=NOW - 6000, name="=cmd()"),
    job_record("3", user="carol", start_time=NOW - 5000, nodes=(NodeShare("n002"),), **RUNNING),
    job_record("5", array_jobid="4", array_index=7, start_time=NOW - 4000),
    job_record("7", het_jobid="6", het_offset=1, start_time=NOW - 3000),
    job_record("8", state=JobState.PENDING, start_time=None, end_time=None, elapsed_seconds=None),
    job_record("9", state=JobState.CANCELLED, start_time=None, elapsed_seconds=0),
    job_record("0f3a2b1c-aaaa-4bbb-8ccc-123456789abc", start_time=NOW - 2000, elapsed_seconds=60),
)
JOB_ON_C2 = job_record("1", cluster="c2", account="x", start_time=NOW - 100, state=JobState.FAILED)
ASSOCIATIONS = Associations(
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


def fill_database(engine):
    """Create tables, jobs, associations and daily sums."""
    migrate(engine)
    store = Store(engine, "c1", UsagePolicy(), clock=lambda: NOW)
    store.write(Batch(JOBS, (), "", 0), "s")
    store.write_associations(ASSOCIATIONS, "people")
    Store(engine, "c2", UsagePolicy(), clock=lambda: NOW).write(Batch((JOB_ON_C2,), (), "", 0), "s")
    with engine.begin() as db:
        for cluster in ("c1", "c2"):
            for day in due_days(db, cluster, 10):
                roll_up(db, cluster, day, NOW)
    engine.dispose()


@pytest.fixture(scope="session")
def database_template(tmp_path_factory):
    """A database that each test copies."""
    path = tmp_path_factory.mktemp("server") / "jobs.db"
    fill_database(writer_engine(parse_url(f"sqlite:///{path}"), create=True))
    return path


@pytest.fixture
def now():
    return NOW


@pytest.fixture
def database_path(database_template, tmp_path):
    """The test's own copy of the database."""
    return shutil.copy(database_template, tmp_path / "jobs.db")


@pytest.fixture(scope="session")
def site_authority():
    """The CA that issues client certificates."""
    return Authority("the site", dt.datetime.fromtimestamp(NOW, dt.UTC))


@pytest.fixture
def database_url(database_path):
    """The URL of the database; postgresql/conftest.py has another fixture of this name."""
    return f"sqlite:///{database_path}"


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
        emissions=EmissionsOptions(provider=("owid:FR",)),
    )
    services = build(settings)._replace(clock=lambda: NOW)
    yield services
    services.reader.dispose()
    services.writer.dispose()


@pytest.fixture
def client(services):
    """A client on the network without any credentials."""
    with TestClient(app.make(services), client=("203.0.113.5", 50000)) as test_client:
        yield test_client


@pytest.fixture
def proxy_client(client, services):
    """Make clients that log in as Grafana does: `proxy_client("alice").get("/api/v1/me")`."""

    def make_client(user):
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}
        made = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
        made.portal = client.portal  # one event loop for all, whose connections the client closes
        return made

    return make_client


@pytest.fixture
def certificate_client(services, site_authority):
    """Make clients with a certificate: `certificate_client("vera", "viewer").get("/api/v1/me")`."""

    def make_client(user, unit):
        certificate, _ = site_authority.issue(("CN", user), ("OU", unit))
        tls_extension = {"tls": {"client_cert_chain": [pem(certificate).decode()]}}
        application = app.make(services)

        async def over_tls(scope, receive, send):
            await application({**scope, "extensions": tls_extension}, receive, send)

        return TestClient(over_tls, client=("203.0.113.5", 50000))

    return make_client


@pytest.fixture
def token_headers(services):
    """Create a token, and return the header to send: `token_headers("alice")`."""

    def create_token(user, role=TokenRole.USER, **options):
        with services.writer.begin() as db:
            text = tokens.create(db, user, role, "test", NOW - 10, **options)
        return {"Authorization": f"Bearer {text}"}

    return create_token
