"""The DaemonSet of the chart as a process: its flags, user, capabilities and mounts."""

import os
import re
import shlex
import shutil
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.e2e.exporter import parse
from tests.helpers.processes import daemon, free_ports, run, succeeds
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
PATH = str(REPOSITORY)
IMPORT = [sys.executable, "-c", "import batchjob_exporter.main, yaml"]
BITS = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19}  # linux/capability.h


def rendered_pod(*flags):
    argv = ["helm", "template", "bj", str(REPOSITORY / "deploy/kubernetes"), *flags]
    done = run(argv, check=True)
    made = [each for each in yaml.safe_load_all(done.stdout) if each]
    config = next(each for each in made if each["kind"] == "ConfigMap")
    daemons = next(each for each in made if each["kind"] == "DaemonSet")
    return daemons["spec"]["template"]["spec"], config["data"]


def bind_mounts(pod, config, root):
    """Shell commands that make the container's mounts below `root`."""
    (container,) = pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    for mount in container["volumeMounts"]:
        place = root / mount["mountPath"].lstrip("/")
        volume = volumes[mount["name"]]
        if "hostPath" not in volume:
            place.mkdir(parents=True)
            place.chmod(0o777)
            for name, text in config.items() if "configMap" in volume else ():
                (place / name).write_text(text)
            continue
        source = Path(volume["hostPath"]["path"])
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if source.is_dir() else place.touch()
        yield f"mount --bind {source} {place} && mount -o remount,bind,ro {place}"


def command(pod, root, port):
    """setpriv with what the container may, and the exporter with its flags."""
    (container,) = pod["containers"]
    security = container["securityContext"]
    named = security["capabilities"].get("add", [])
    bounding = ",".join(["-all", *(f"+{name.lower()}" for name in named)])
    user, group = security["runAsUser"], security["runAsGroup"]
    flags = [
        re.sub("=(/host|/etc/batchjob)", lambda found: f"={root}{found[1]}", flag)
        for flag in container["args"]
    ]
    return [
        "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs",
        "--inh-caps=-all", f"--bounding-set={bounding}", sys.executable, "-m",
        "batchjob_exporter", f"--web.listen-address=127.0.0.1:{port}", *flags,
    ]  # fmt: skip


@pytest.mark.parametrize("named", [(), ("DAC_READ_SEARCH",), ("DAC_READ_SEARCH", "SYS_PTRACE")])
def test_exporter_works_with_mounts_of_its_pod(named, tmp_path):
    absent = [tool for tool in ("helm", "unshare", "setpriv") if not shutil.which(tool)]
    if absent or os.geteuid() != 0:
        pytest.skip(f"not installed: {', '.join(absent)}" if absent else "only root mounts")
    pod, config = rendered_pod(
        f"--set=exporter.capabilities={{{','.join(named)}}}"
        if named
        else "--set-json=exporter.capabilities=[]"
    )
    if not named and not succeeds(["setpriv", "--reuid=65534", *IMPORT], {"PYTHONPATH": PATH}):
        pytest.skip("the Python or the repository of these tests is not for all users")
    root, (port,) = tmp_path / "root", free_ports(1)
    for above in (tmp_path, *tmp_path.parents[:-2]):
        above.chmod(0o755)  # for the user nobody
    script = " && ".join(
        [*bind_mounts(pod, config, root), f"exec {shlex.join(command(pod, root, port))}"]
    )
    argv = ["unshare", "--mount", "--propagation=private", "sh", "-ec", script]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PATH}
    log = tmp_path / "log"

    def answer(path):
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}{path}", timeout=scaled(5)
            ) as response:
                return response.read().decode()
        except OSError:
            return ""

    with daemon(argv, log, environment) as process:
        for probe in ("livenessProbe", "readinessProbe"):
            path = pod["containers"][0][probe]["httpGet"]["path"]
            until(lambda path=path: answer(path), f"{path}: {log}", 30)
        scrape = parse(answer("/metrics"), time.time())
        status = Path(f"/proc/{process.pid}/status").read_text()
    (effective,) = re.findall(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)
    assert int(effective, 16) == sum(1 << BITS[name] for name in named)
    for name in ("jobs", "node", "rapl", "hwmon", "energy"):
        assert scrape.value("batchjob_scrape_collector_success", collector=name) == 1, name
    assert scrape.value("batchjob_node_cpus") == os.cpu_count()
