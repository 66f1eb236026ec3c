"""The pages that the report points to are there, and their examples work."""

import re
from pathlib import Path

import yaml

from batchjob.schedulers import registry
from batchjob_cli.doctor.command import SUBJECTS
from collectors.jobs.discovery.site_layouts import site_layouts
from collectors.jobs.discovery.walk import match

ROOT = Path(__file__).parents[3]


def test_pages_named_in_advice_exist():
    managers = registry.job_managers().values()
    advice = [text for side in managers for text in (side.advice, *side.controllers.values())]
    pages = {page for text in advice for page in re.findall(r"docs/\S+\.md", text)}
    assert pages
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_every_subject_is_documented():
    page = (ROOT / "docs/doctor.md").read_text()
    assert [name for name in SUBJECTS if f"| {name} |" not in page] == []


def test_documented_layouts_find_jobs():
    page = (ROOT / "docs/schedulers/others.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (example,) = (text for text in examples if "mybatch" in text)
    rows = site_layouts(yaml.safe_load(example)["collector.jobs.layouts"])
    paths = [
        "mybatch/user_5/job_7",
        "x.slice/mybatch.slice/long-8.scope",
        r"site.slice/site-9\x5b1\x5d.srv.slice",
        "farm/n3/job_10",
    ]
    jobs = [match(path, rows, 2) for path in paths]
    assert [(job.manager, job.jobid) for job in jobs if job] == [
        ("mybatch", "7"),
        ("mybatch", "8"),
        ("pbs", "9[1].srv"),
        ("slurm", "10"),
    ]
