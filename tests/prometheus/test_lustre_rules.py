"""The recording rules of docs/file_systems.md, which join Lustre's job_stats with jobs."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.processes import run

PAGE = Path(__file__).parents[2] / "docs" / "file_systems.md"

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


def test_what_the_servers_count_has_the_user_of_the_job(tmp_path):
    """Job 7 ran on two nodes, and used two targets; job 8 is of another scheduler."""
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "rules.yml").write_text(rules)
    targets = {
        f'lustre_job_{way}_bytes_total{{jobid="{job}", target="{target}"}}': f"0+{60 * rate}x10"
        for way, rate in (("read", 100), ("write", 10))
        for job in (7, 8)
        for target in ("OST0000", "OST0001")
    }
    jobs = {
        f'batchjob_job_info{{{labels}, node="{node}"}}': "1x10"
        for labels in (
            'manager="slurm", jobid="7", user="alice"',
            'manager="pbs", jobid="8", user="bob"',
        )
        for node in ("n1", "n2")
    }
    series = [{"series": name, "values": values} for name, values in {**targets, **jobs}.items()]
    expected = [
        {
            "expr": f"batchjob:job:lustre_{name}_bytes:rate5m",
            "eval_time": "10m",
            "exp_samples": [
                {
                    "labels": f'batchjob:job:lustre_{name}_bytes:rate5m{{manager="slurm", '
                    'jobid="7", user="alice"}',
                    "value": value,
                }
            ],
        }
        for name, value in (("read", 200), ("written", 20))
    ]
    case = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": expected}],
    }
    (tmp_path / "case.yml").write_text(yaml.safe_dump(case))
    done = run(["promtool", "test", "rules", "case.yml"], timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
