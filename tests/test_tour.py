"""docs/development.md is true: its files exist, and a change touches what it lists and no more."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectors.jobs.nodes import Node

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs/development.md").read_text()
PACKAGES = ("batchjob", "batchjob_cli", "batchjob_stats_db", "batchjob_stats_server", "collectors")


def listed(title):
    """The files in the list of a section, as they are called for something with the name toy."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return {path.replace("<name>", "toy") for path in re.findall(r"^- `([^`]+)`", section, re.M)}


@pytest.fixture
def tree(tmp_path):
    """A copy of the packages."""
    for package in PACKAGES:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=skipped)
    return tmp_path


def change(tree, new, *rows):
    """Write new files and put rows into tables: (file, line it stands behind, row); the files."""
    for name, content in new.items():
        (tree / name).parent.mkdir(exist_ok=True)
        assert not (tree / name).exists()
        (tree / name).write_text(content)
    for path, anchor, text in rows:
        before = (tree / path).read_text()
        assert before.count(anchor) == 1
        (tree / path).write_text(before.replace(anchor, anchor + text))
    return {path for path, _, _ in rows} | set(new)


def printed(tree, script):
    """What a program prints that finds the packages in the copy alone."""
    program = f"import sys; sys.path.insert(0, {str(tree)!r})\n{script}"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_on_the_page_exists():
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.[a-z]+)`", PAGE)
    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_a_metric_of_a_job(tree):
    node = Node(tree / "node")
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
        '    "Lowest memory limit that applies to the job.",\n)\n',
        """MEMORY_TABLES = _gauge(
    "memory_tables_bytes", "bytes", "memory", lambda job: job.cgroup.memory_tables, "Tables.",
)
""",
    )
    assert change(tree, {}, field, row) == listed("Add a metric of a job")
    script = f"""
from batchjob.quantities.index import BY_NAME
from collectors.host import Host
from collectors.jobs.collector import JobsOptions, build

host = Host(procfs={node.host.procfs!r}, cgroupfs={node.host.cgroupfs!r})
jobs = build(host, JobsOptions(), {{}})
jobs.update()
found = {{family.metric.name: list(family.samples) for family in jobs.collect()}}
print(found["batchjob_job_memory_tables_bytes"][0][1], BY_NAME["memory_tables_bytes"].name)
"""
    assert printed(tree, script).split() == ["12288", "memory_tables_bytes"]


def test_a_scheduler(tree):
    folder = "batchjob/schedulers/toy"
    new = {
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
    touched = change(tree, new, (table, "SCHEDULERS: tuple[Scheduler, ...] = (", row))
    assert touched == listed("Add a scheduler")
    script = """
from batchjob.schedulers.cluster import ClusterOptions
from batchjob_cli.doctor.schedulers import SCHEDULERS
from batchjob_stats_db.poller.options import SOURCES
from collectors.cluster.collector import find_readers
from collectors.jobs.discovery.places import match
from collectors.jobs.discovery.site_layouts import all_layouts

print(match("toy/job_7", all_layouts(()), 1).jobid)
print(SOURCES["toy_log"].load().build("c1", None).cluster)
print(find_readers(ClusterOptions(scheduler="toy"))[0])
print([side.advice for side in SCHEDULERS if side.manager == "toy"])
"""
    assert printed(tree, script).split() == ["7", "c1", "toy", "['play']"]


def test_a_gpu_vendor(tree):
    new = {
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
    touched = change(tree, new, ("collectors/gpu/vendor.py", "VENDORS: Mapping[str, str] = {", row))
    assert touched == listed("Add a GPU vendor")
    script = """
from collectors.gpu.collector import GpuOptions, build
from collectors.host import Host

found = {family.metric.name: family.samples for family in build(Host(), GpuOptions(), {}).collect()}
print(found["batchjob_gpu_driver_info"])
print(found["batchjob_gpu_info"])
"""
    shown = printed(tree, script)
    assert 'vendor="toy",version="1.0"' in shown
    assert "TOY-1" in shown


def test_a_route(tree):
    new = {
        "batchjob_stats_db/queries/toy.py": """
def toys():
    return ["bear"]
""",
        "batchjob_stats_server/api/toy.py": """
from fastapi import APIRouter

from batchjob_stats_db.queries import toy as queries
from batchjob_stats_server.api import PREFIX

router = APIRouter(prefix=PREFIX)

@router.get("/toys")
def toys():
    return queries.toys()
""",
    }
    row = '\n    __import__("batchjob_stats_server.api.toy", fromlist=["router"]).router,'
    touched = change(tree, new, ("batchjob_stats_server/app.py", "\nROUTERS = (", row))
    assert touched == listed("Add a route to the API")
    script = """
from fastapi import FastAPI
from fastapi.testclient import TestClient

from batchjob_stats_server.app import ROUTERS

app = FastAPI()
for router in ROUTERS:
    app.include_router(router)
print(TestClient(app).get("/api/v1/toys").json())
"""
    assert printed(tree, script).strip() == "['bear']"


def test_a_page(tree):
    new = {
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
    touched = change(tree, new, ("batchjob_stats_server/app.py", "\nPAGES = (", row))
    assert touched == listed("Add a page")
    script = """
from fastapi import FastAPI
from fastapi.testclient import TestClient

from batchjob_stats_server.app import PAGES

app = FastAPI()
for router in PAGES:
    app.include_router(router)
print(TestClient(app).get("/toys").text)
"""
    assert printed(tree, script).strip() == "<p>bear</p>"


def test_a_command(tree):
    new = {
        "batchjob_cli/toy.py": """
def run(arguments):
    print("bear", *arguments)
    return 0
""",
    }
    row = '\n    Command("toy", "batchjob_cli.toy", "A toy."),'
    touched = change(tree, new, ("batchjob_cli/main.py", "COMMANDS = (", row))
    assert touched == listed("Add a command")
    script = 'from batchjob_cli.main import main; main(["toy", "brown"])'
    assert printed(tree, script).strip() == "bear brown"


def test_nothing_but_its_folder_and_the_registry_names_a_scheduler():
    found = {
        str(path.relative_to(REPOSITORY))
        for package in (*PACKAGES, "batchjob_exporter")
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in ("slurm", "pbs", "lsf")
    }
    home = re.compile(
        r"batchjob/schedulers/(registry\.py|(slurm|pbs|lsf)/.*)"
        r"|batchjob_cli/up/demo_\w+\.py"  # a cluster with Slurm, made up
    )
    assert sorted(path for path in found if not home.fullmatch(path)) == []
