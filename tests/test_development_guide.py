"""docs/development.md: its files exist, and each kind of change needs only the listed files."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectors.jobs.nodes import Node
from tests.helpers.waiting import scaled

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs/development.md").read_text()
PACKAGES = ("batchjob", "batchjob_cli", "batchjob_stats_db", "batchjob_stats_server", "collectors")


def listed_files(title):
    """The files in the list of a section, with `toy` for `<name>`."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return {path.replace("<name>", "toy") for path in re.findall(r"^- `([^`]+)`", section, re.M)}


@pytest.fixture
def packages(tmp_path):
    """A copy of the packages."""
    for package in PACKAGES:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=skipped)
    return tmp_path


def apply_change(packages, new_files, *rows):
    """Write new files and insert rows: (file, text before the row, row); returns all files."""
    for name, content in new_files.items():
        (packages / name).parent.mkdir(exist_ok=True)
        assert not (packages / name).exists()
        (packages / name).write_text(content)
    for path, anchor, text in rows:
        before = (packages / path).read_text()
        assert before.count(anchor) == 1
        (packages / path).write_text(before.replace(anchor, anchor + text))
    return {path for path, _, _ in rows} | set(new_files)


def run_script(packages, script):
    """Run a script that imports the packages from the copy only; returns its output."""
    program = f"import sys; sys.path.insert(0, {str(packages)!r})\n{script}"
    command = [sys.executable, "-P", "-c", program]
    result = subprocess.run(
        command, cwd=packages, capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_files_on_the_page_exist():
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.[a-z]+)`", PAGE)
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_add_job_metric(packages):
    node = Node(packages / "node")
    job = node.add_job(pids=[71])
    node.add_process(71)
    (job / "memory.stat").write_text("anon 4096\npagetables 12288\n")
    field = (
        "batchjob/quantities/reading.py",
        '    memory_limit: Annotated[Number, V2("memory.max"), GAUGE] = None\n',
        '    memory_tables: Annotated[Number, V2("memory.stat", "pagetables"), GAUGE] = None\n',
    )
    row = (
        "batchjob/quantities/job.py",
        '    "Lowest memory limit that applies to the job.")\n',
        """MEMORY_TABLES = _gauge("memory_tables_bytes", "bytes", "memory",
    lambda job: job.cgroup.memory_tables, "Tables.")
""",
    )
    assert apply_change(packages, {}, field, row) == listed_files("Add a metric of a job")
    script = f"""
from batchjob.quantities.sample import BY_NAME
from collectors.host import Host
from collectors.jobs.collector import JobsCollector, JobsOptions

host = Host(procfs={node.host.procfs!r}, cgroupfs={node.host.cgroupfs!r})
jobs = JobsCollector(host, JobsOptions())
jobs.update()
found = {{family.metric.name: list(family.all_samples()) for family in jobs.collect()}}
print(found["batchjob_job_memory_tables_bytes"][0][1], BY_NAME["memory_tables_bytes"].name)
"""
    assert run_script(packages, script).split() == ["12288", "memory_tables_bytes"]


def test_add_scheduler(packages):
    folder = "batchjob/schedulers/toy"
    new_files = {
        f"{folder}/__init__.py": "",
        f"{folder}/node.py": """
from batchjob.schedulers.layout import layout
from batchjob.schedulers.node import JobManager

LAYOUTS = (layout("toy", "toy", r"toy/job_(?P<jobid>[0-9]+)"),)
JOB_MANAGERS = (JobManager("toy", LAYOUTS, advice="play"),)
""",
        f"{folder}/accounting.py": """
from dataclasses import dataclass

from batchjob.schedulers.accounting import AccountingModule

@dataclass(frozen=True)
class ToyOptions:
    pass

class Toy:
    name = "toy_log"
    def __init__(self, cluster):
        self.cluster = cluster

ACCOUNTING = AccountingModule(ToyOptions, lambda cluster, options: Toy(cluster))
""",
        f"{folder}/cluster.py": """
from batchjob.schedulers.cluster import ClusterModule, ClusterReaders

CLUSTER = ClusterModule(lambda options: ClusterReaders(nodes=list), lambda: None)
""",
    }
    row = """
    Scheduler(
        "toy",
        f"{_PACKAGE}.toy.node",
        (SourceEntry("toy_log", f"{_PACKAGE}.toy.accounting", "the toy's log"),),
        cluster=f"{_PACKAGE}.toy.cluster",
        command="toys",
    ),"""
    table = "batchjob/schedulers/registry.py"
    changed_files = apply_change(
        packages, new_files, (table, "SCHEDULERS: tuple[Scheduler, ...] = (", row)
    )
    assert changed_files == listed_files("Add a scheduler")
    script = """
from batchjob.schedulers.cluster import ClusterOptions
from batchjob_cli.doctor.schedulers import SCHEDULERS
from batchjob_stats_db.poller.options import SOURCES
from collectors.cluster.collector import find_readers
from collectors.jobs.discovery.walk import match
from collectors.jobs.discovery.site_layouts import all_layouts

print(match("toy/job_7", all_layouts(()), 1).jobid)
print(SOURCES["toy_log"].load().build("c1", None).cluster)
print(find_readers(ClusterOptions(scheduler="toy"))[0])
print([side.advice for side in SCHEDULERS if side.manager == "toy"])
"""
    assert run_script(packages, script).split() == ["7", "c1", "toy", "['play']"]


def test_add_gpu_vendor(packages):
    new_files = {
        "collectors/gpu/toy.py": """
from collectors.gpu.devices import Gpu
from collectors.gpu.reading import KnownGpu

class VENDOR:
    version, complete = "1.0", True
    def __init__(self, host, interval):
        pass
    def start(self):
        pass
    def stop(self):
        pass
    def known_gpus(self):
        return [KnownGpu(Gpu("toy", 0, "TOY-1", 0, "0000:01:00.0", "Toy"), None, None)]
    def errors(self):
        return {}
""",
    }
    row = '\n    "toy": "collectors.gpu.toy",'
    changed_files = apply_change(
        packages, new_files, ("collectors/gpu/vendor.py", "VENDORS: Mapping[str, str] = {", row)
    )
    assert changed_files == listed_files("Add a GPU vendor")
    script = """
from collectors.gpu.collector import GpuOptions, build
from collectors.host import Host

found = {family.metric.name: family.samples for family in build(Host(), GpuOptions(), {}).collect()}
print(found["batchjob_gpu_driver_info"])
print(found["batchjob_gpu_info"])
"""
    output = run_script(packages, script)
    assert 'vendor="toy",version="1.0"' in output
    assert "TOY-1" in output


def test_add_emission_provider(packages):
    new_files = {
        "collectors/emissions/providers/toy.py": """
from dataclasses import dataclass

from batchjob.runtime.settings import option
from batchjob.secret_files import secret_file
from collectors.emissions.providers.provider import HOUR, MINUTE, EmissionFactor, ProviderEntry

@dataclass(frozen=True)
class ToyOptions:
    toy_token_file: str = option("", "File with the token of the toy.", parse=secret_file)

def read(fetch_json, access, now):
    grams = fetch_json(access.url, [("token", access.secret())])
    return (EmissionFactor("toy", access.zone, "lifecycle", grams, now),)

PROVIDER = ProviderEntry(
    read, "https://toys", 5 * MINUTE, HOUR, "[A-Z]+", "Toys", credential_option="toy_token_file"
)
""",
    }
    module = '__import__("collectors.emissions.providers.toy", fromlist=["x"])'
    changed_files = apply_change(
        packages,
        new_files,
        (
            "collectors/emissions/providers/registry.py",
            "PROVIDERS = {",
            f'\n    "toy": {module}.PROVIDER,',
        ),
        (
            "collectors/emissions/site_factors.py",
            "class EmissionsOptions(",
            f"\n    {module}.ToyOptions,",
        ),
    )
    assert changed_files == listed_files("Add a provider of emission factors")
    token = packages / "token"
    token.write_text("t\n")
    token.chmod(0o600)
    script = f"""
from batchjob.runtime.settings import build_section
from collectors.emissions.site_factors import EmissionsOptions
from collectors.emissions.site_factors import SiteFactors

given = {{"emissions.provider": "toy:FR", "emissions.toy-token-file": {str(token)!r}}}
(poller,) = SiteFactors.of_site(build_section(EmissionsOptions, "emissions", given)).pollers
print(poller.name)
"""
    assert run_script(packages, script).split() == ["toy"]


def test_add_option(packages):
    field = (
        "batchjob_stats_server/options.py",
        'class LimitOptions:\n    """Limits on requests and connections."""\n\n',
        '    toys: int = option(3, "Number of toys.", parse=at_least_one)\n',
    )
    assert apply_change(packages, {}, field) == listed_files("Add an option")
    script = """
from batchjob.runtime.settings import format_default, options_of
from batchjob_stats_server.options import SECTIONS, settings

print(settings({}, "").limit.toys, settings({"limit.toys": "7"}, "").limit.toys)
(toys,) = (each for each in options_of(SECTIONS) if each.name == "limit.toys")
print(format_default(toys), toys.help)
"""
    assert run_script(packages, script).split() == ["3", "7", "3", "Number", "of", "toys."]


def test_add_route(packages):
    new_files = {
        "batchjob_stats_db/queries/toy.py": """
def toys():
    return ["bear"]
""",
        "batchjob_stats_server/api/toy.py": """
from fastapi import APIRouter

from batchjob_stats_db.queries import toy as queries
from batchjob_stats_server.api.params import PREFIX

router = APIRouter(prefix=PREFIX)

@router.get("/toys")
def toys():
    return queries.toys()
""",
    }
    row = '\n    __import__("batchjob_stats_server.api.toy", fromlist=["router"]).router,'
    changed_files = apply_change(
        packages, new_files, ("batchjob_stats_server/app.py", "\nROUTERS = (", row)
    )
    assert changed_files == listed_files("Add a route to the API")
    script = """
from fastapi import FastAPI
from fastapi.testclient import TestClient

from batchjob_stats_server.app import ROUTERS

app = FastAPI()
for router in ROUTERS:
    app.include_router(router)
print(TestClient(app).get("/api/v1/toys").json())
"""
    assert run_script(packages, script).strip() == "['bear']"


def test_add_page(packages):
    new_files = {
        "batchjob_stats_server/pages/toy.py": """
import jinja2
from fastapi import APIRouter, Response

router = APIRouter(include_in_schema=False)

@router.get("/toys")
def toys():
    templates = jinja2.Environment(loader=jinja2.PackageLoader("batchjob_stats_server.pages"))
    return Response(templates.get_template("toy.html").render(toy="bear"))
""",
        "batchjob_stats_server/pages/templates/toy.html": "<p>{{ toy }}</p>",
    }
    row = '\n    __import__("batchjob_stats_server.pages.toy", fromlist=["router"]).router,'
    changed_files = apply_change(
        packages, new_files, ("batchjob_stats_server/app.py", "\nPAGES = (", row)
    )
    assert changed_files == listed_files("Add a page")
    script = """
from fastapi import FastAPI
from fastapi.testclient import TestClient

from batchjob_stats_server.app import PAGES

app = FastAPI()
for router in PAGES:
    app.include_router(router)
print(TestClient(app).get("/toys").text)
"""
    assert run_script(packages, script).strip() == "<p>bear</p>"


def test_add_command(packages):
    new_files = {
        "batchjob_cli/toy.py": """
def run(arguments):
    print("bear", *arguments)
    return 0
""",
    }
    row = '\n    Command("toy", "batchjob_cli.toy", "A toy."),'
    changed_files = apply_change(packages, new_files, ("batchjob_cli/main.py", "COMMANDS = (", row))
    assert changed_files == listed_files("Add a command")
    script = 'from batchjob_cli.main import main; main(["toy", "brown"])'
    assert run_script(packages, script).strip() == "bear brown"


def test_scheduler_is_named_only_in_its_folder_and_the_registry():
    found = {
        str(path.relative_to(REPOSITORY))
        for package in (*PACKAGES, "batchjob_exporter")
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in ("slurm", "pbs", "lsf")
    }
    allowed_path = re.compile(
        r"batchjob/schedulers/(registry\.py|(slurm|pbs|lsf)/.*)"
        r"|batchjob_cli/up/demo_\w+\.py"  # a cluster with Slurm, made up
    )
    assert sorted(path for path in found if not allowed_path.fullmatch(path)) == []
