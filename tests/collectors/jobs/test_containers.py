"""Containers of Docker and Podman as jobs, with labels from the engines' own files."""

import contextlib
import json
import os
import pwd
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from batchjob.schedulers import registry
from batchjob_exporter import exposition
from collectors.jobs import collector
from collectors.jobs.discovery.site_layouts import all_layouts, site_layouts
from collectors.jobs.discovery.walk import match
from collectors.jobs.processes.identifier import UserNames
from tests.collectors.jobs.nodes import requires_root

ENABLED = site_layouts([{"manager": name, "enabled": True} for name in ("docker", "podman")])
ID = "4c01db0b339c" + 52 * "0"
POD = "92e2274a654b" + 52 * "1"
USER = "user.slice/user-1000.slice/user@1000.service"

# From the engines' documentation and sources, named in batchjob/schedulers/containers.py.
PATHS = [
    (1, f"docker/{ID}", "docker", None),
    (2, f"docker/{ID}", "docker", None),
    (1, f"system.slice/docker-{ID}.scope", "docker", None),
    (2, f"system.slice/docker-{ID}.scope", "docker", None),
    (2, f"batch.slice/docker-{ID}.scope", "docker", None),  # --cgroup-parent
    (2, f"{USER}/user.slice/docker-{ID}.scope", "docker", 1000),
    (2, f"{USER}/user.slice/runc-{ID}.scope", "docker", 1000),  # no controllers
    (1, f"libpod_parent/libpod-{ID}", "podman", None),
    (2, f"libpod_parent/{POD}/libpod-{ID}", "podman", None),
    (1, f"machine.slice/libpod-{ID}.scope", "podman", None),
    (2, f"machine.slice/libpod-{ID}.scope", "podman", None),
    (2, f"machine.slice/machine-libpod_pod_{POD}.slice/libpod-{ID}.scope", "podman", None),
    (2, f"system.slice/web.service/libpod-payload-{ID}", "podman", None),
    (2, f"{USER}/user.slice/libpod-{ID}.scope", "podman", 1000),
    (2, f"{USER}/user.slice/user-libpod_pod_{POD}.slice/libpod-{ID}.scope", "podman", 1000),
    (2, f"{USER}/app.slice/web.service/libpod-payload-{ID}", "podman", 1000),
    (2, f"{USER}/user.slice/podman-826.scope/libpod-payload-{ID}", "podman", 1000),
]


@pytest.mark.parametrize(("version", "path", "manager", "uid"), PATHS)
def test_container_is_a_job_where_a_site_enables_its_engine(version, path, manager, uid):
    job = match(path, all_layouts(ENABLED), version)
    assert (job.manager, job.jobid, job.uid) == (manager, ID, uid)
    assert match(path, registry.layouts(), version) is None


@pytest.mark.parametrize(
    "path",
    [
        f"machine.slice/libpod-conmon-{ID}.scope",
        "libpod_parent/conmon",
        f"libpod_parent/{POD}",
        f"system.slice/docker-{ID[:12]}.scope",
        "system.slice/docker.service",
        f"system.slice/runc-{ID}.scope",
        f"{USER}/user.slice/{ID}",  # of Docker or of Podman, by runc without systemd
    ],
)
def test_what_serves_containers_or_is_of_any_engine_is_no_job(path):
    assert not any(match(path, all_layouts(ENABLED), version) for version in (1, 2))


def test_jobs_of_a_scheduler_in_a_container_are_found_in_it():
    path = f"system.slice/docker-{ID}.scope/system.slice/slurmstepd.scope/job_9"
    job = match(path, all_layouts(ENABLED), 2)
    assert (job.manager, job.jobid) == ("slurm", "9")


def test_engine_is_enabled_by_its_name_only():
    with pytest.raises(ValueError, match=r"row 1: manager: .*did you mean docker"):
        site_layouts([{"manager": "dockr", "enabled": True}])


def info_of(host, *directories, **options):
    """Labels of batchjob_job_info by job id, and the errors that were counted."""
    now = [0.0]
    host = replace(host, monotonic=lambda: now[0])
    names = UserNames(look_up=lambda uid: f"user{uid}")
    settings = collector.JobsOptions(
        layouts=ENABLED, name=True, container_directories=tuple(map(str, directories)), **options
    )
    jobs = collector.JobsCollector(host, settings, names)
    for _ in range(5):
        jobs.update()
        now[0] += 20.0
    text = exposition.render(jobs.collect()).decode()
    jobs.stop()
    found, errors = {}, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "batchjob_job_info":
                found[sample.labels["jobid"]] = sample.labels
            if sample.name == "batchjob_job_read_errors_total" and sample.value:
                errors[sample.labels["reason"]] = sample.value
    return found, errors, text


@pytest.mark.usefixtures("as_recorded")
def test_recorded_containers_of_podman_have_name_image_and_user(unpacked):
    host = unpacked("podman-4.3-v1-cgroupfs")
    storage = os.path.join(host.procfs, "..", "var/lib/containers/storage")
    found, errors, text = info_of(host, "/var/lib/docker", storage)
    shown = {
        (labels["name"], labels["image"], labels["container_user"], labels.get("user"))
        for labels in found.values()
    }
    image = "localhost/batchjob-busybox:2"
    assert {each[:3] for each in shown} == {
        ("web", image, "1000"), ("root-job", image, "0"), ("worker", image, "1000"),
    }  # fmt: skip
    assert ("web", image, "1000", "user1000") in shown
    assert "container_state" not in errors
    web = next(jobid for jobid, labels in found.items() if labels["name"] == "web")
    assert f'jobid="{web}",user="user1000"}} 67108864' in text  # its memory limit


@pytest.fixture
def at_home(unpacked, monkeypatch):
    """A recorded machine whose users have their home there, and what is shown of its containers."""

    def show(name, *directories):
        host = unpacked(name)
        top = os.path.join(host.procfs, "..")
        monkeypatch.setattr(
            "collectors.jobs.processes.identifier.pwd.getpwuid",
            lambda uid: pwd.struct_passwd(("u", "x", uid, uid, "", f"{top}/home/work", "")),
        )
        found, errors, _ = info_of(host, *(each.replace("TOP", top) for each in directories))
        assert "container_state" not in errors
        return {(each["manager"], each["name"], each["user"]) for each in found.values()}

    return show


@requires_root
def test_recorded_containers_of_a_user_have_labels_though_root_has_containers_too(at_home):
    assert at_home(
        "containers-v2-systemd", "TOP/var/lib/docker", "TOP/var/lib/containers/storage",
        "~/.local/share/docker", "~/.local/share/containers/storage",
    ) == {
        ("docker", "solver", "user1000"), ("podman", "mine", "user1500"),
        ("podman", "mine2", "user1500"), ("podman", "uquad", "user1500"),
    }  # fmt: skip


@requires_root
def test_recorded_containers_of_rootless_docker_have_names_and_their_user(at_home):
    assert at_home("docker-20.10-v2-rootless", "~/.local/share/docker") == {
        ("docker", "solver", "user1500"),
        ("docker", "plain", "user1500"),
    }


DOCKER_STATE = {
    "ID": ID, "Created": "2026-11-20T10:00:00.123456789Z", "Name": "/solver", "Path": "python",
    "State": {"Running": True, "Pid": 4242},
    "Config": {"Hostname": "4c01db0b339c", "User": "1000:1000", "Image": "example.org/cfd:7"},
    "Image": "sha256:8d7cdece841d", "Driver": "overlay2",
}  # fmt: skip


def docker_container(node, top, state, scope="system.slice", uid=0, pid_uid=1000):
    """Make a container of Docker with one process, and its file, which this user owns."""
    node.add_job(f"docker-{ID}.scope", scope, pids=[4242])
    node.add_process(4242, uid=pid_uid)
    file = top / "containers" / ID / "config.v2.json"
    file.parent.mkdir(parents=True)
    file.write_text(state if isinstance(state, str) else json.dumps(state))
    os.chown(file, uid, uid)
    return file


@requires_root
def test_container_of_docker_has_name_image_and_user(node, tmp_path):
    docker_container(node, tmp_path / "docker", DOCKER_STATE)
    found, errors, text = info_of(node.host, tmp_path / "docker")
    assert found[ID]["name"] == "solver"
    assert found[ID]["image"] == "example.org/cfd:7"
    assert (found[ID]["container_user"], found[ID]["user"]) == ("1000:1000", "user1000")
    assert not errors
    assert f'batchjob_job_cpu_seconds_total{{manager="docker",jobid="{ID}"' in text


@requires_root
def test_container_of_a_user_has_labels_from_the_files_of_the_user(node, tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setattr(
        "collectors.jobs.processes.identifier.pwd.getpwuid",
        lambda uid: pwd.struct_passwd(("u", "x", uid, uid, "", str(home), "")),
    )
    scope = f"{USER}/user.slice"
    docker_container(node, home / ".local/share/docker", DOCKER_STATE, scope, uid=1000)
    found, errors, _ = info_of(node.host, "/var/lib/docker", "~/.local/share/docker")
    assert (found[ID]["name"], found[ID]["user"]) == ("solver", "user1000")
    assert not errors


@requires_root
@pytest.mark.parametrize(
    ("state", "uid"),
    [
        (DOCKER_STATE, 1000),  # a user wrote root's file
        ({**DOCKER_STATE, "Config": {}}, 0),
        ({**DOCKER_STATE, "Name": ["solver"]}, 0),
        ("[]", 0),
        ("{", 0),
        ("[" * 100_000, 0),
        (" " * (5 << 20), 0),
    ],
    ids=["owner", "version", "type", "list", "json", "depth", "size"],
)
def test_file_that_cannot_be_trusted_or_read_is_counted(node, tmp_path, state, uid):
    docker_container(node, tmp_path / "docker", state, uid=uid)
    found, errors, text = info_of(node.host, tmp_path / "docker")
    assert not {"name", "image", "container_user"} & set(found[ID])
    assert errors == {"container_state": 1}
    assert f'batchjob_job_memory_current_bytes{{manager="docker",jobid="{ID}"' in text


@requires_root
def test_file_that_is_a_link_is_not_followed(node, tmp_path):
    file = docker_container(node, tmp_path / "docker", DOCKER_STATE)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    found, errors, _ = info_of(node.host, tmp_path / "docker")
    assert "name" not in found[ID]
    assert errors == {"container_state": 1}


def test_container_whose_files_are_elsewhere_is_counted_once(node, tmp_path):
    node.add_job(f"docker-{ID}.scope", "system.slice", pids=[4242])
    node.add_process(4242)
    found, errors, _ = info_of(node.host, tmp_path / "docker")
    assert found[ID]["user"] == "user1000"
    assert errors == {"container_state": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "ID", "Name", "Config", "Image", "User", "metadata", "name",
                             "image-name", "process", "user", "uid"]),
            children | st.just(ID) | st.just('{"name": "x"}'), max_size=5)
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize("manager", ["docker", "podman"])
@given(first=json_values, second=json_values)
def test_any_json_gives_labels_or_a_value_error(tmp_path_factory, manager, first, second):
    top = tmp_path_factory.mktemp("engine", numbered=True)
    for name, value in (
        (f"containers/{ID}/config.v2.json", first),
        ("overlay-containers/containers.json", first),
        (f"overlay-containers/{ID}/userdata/config.json", second),
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(json.dumps(value))
    read = registry.job_manager(manager).labels_from_files
    with contextlib.suppress(ValueError):
        labels = read(top, ID, (os.geteuid(),))
        assert all(isinstance(value, str) for value in labels.values())
