"""Containers of Docker and Podman, outside Kubernetes: each is a job, if a site enables them.

Paths: Docker's documentation, "Runtime metrics", and moby, daemon/oci_linux.go; podman,
libpod/container_internal_linux.go and podman-run(1), `--cgroups`. Without root, cgroups tell the
engine only on cgroup v2 with systemd.

Labels are read from the files in which the engines keep their state, never from their sockets,
whose clients may do anything. Docker: `containers/<id>/config.v2.json` below its data-root. Podman:
containers/storage, docs/containers-storage.md, and the OCI runtime specification.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.user_files import open_regular_file
from batchjob.schedulers.layout import V1_AND_V2, V2, Layout, layout
from batchjob.schedulers.node import JobManager

_ID = r"(?P<jobid>[0-9a-f]{64})"
_USER = r"user\.slice/user-\d+\.slice/user@(?P<uid>\d+)\.service"
_MAX_FILE_BYTES = 4 << 20  # the list of a thousand containers has less than 1 MB
_Labels = dict[str, str]
_LIKE_A_POD: dict[str, Any] = {"can_contain_jobs": True, "enabled": False}
_STORAGE_DRIVERS = ("overlay", "btrfs", "zfs", "vfs")


def _layouts(manager: str, job: str) -> Iterator[Layout]:
    """Layouts of directories of this name: anywhere but below users, and below a user's systemd.

    There, they are in a slice, in a slice of a slice (a pod), in the service that starts them, or
    in the scope into which podman moves itself.
    """
    for suffix, path, versions in (
        ("", f"**/{job}", V1_AND_V2),
        ("-rootless", rf"{_USER}/.+\.slice/{job}", V2),
        ("-rootless-nested", rf"{_USER}/.+\.slice/.+\.(?:slice|service|scope)/{job}", V2),
    ):
        yield layout(f"{manager}{suffix}", manager, path, versions=versions, **_LIKE_A_POD)


# fmt: off
_DOCKER = (
    layout("docker-cgroupfs", "docker", rf"**/docker/{_ID}", **_LIKE_A_POD),
    *_layouts("docker", rf"docker-{_ID}\.scope"),
    # Without root and without controllers, moby gives no path (daemon/oci_linux.go, WithRootless),
    # and runc names the scope.
    layout("docker-rootless-runc", "docker", rf"{_USER}/.+\.slice/runc-{_ID}\.scope", versions=V2,
        **_LIKE_A_POD),
)
# fmt: on
# `--cgroups=split`, which systemd's units for containers use: libpod-payload-<id>.
_PODMAN = tuple(_layouts("podman", rf"libpod-(?:payload-)?{_ID}(?:\.scope)?"))


def _docker_labels(directory: Path, jobid: str, owners: Sequence[int]) -> _Labels:
    state = _read_json(directory / "containers" / jobid / "config.v2.json", owners)
    if state is None:
        return {}
    config = _member(state, "Config", dict)
    return {
        "name": _member(state, "Name", str).removeprefix("/"),
        "image": _member(config, "Image", str),
        "container_user": _member(config, "User", str),
    }


def _podman_labels(directory: Path, jobid: str, owners: Sequence[int]) -> _Labels:
    for driver in _STORAGE_DRIVERS:
        storage = directory / f"{driver}-containers"
        entry = _find_container(storage, jobid, owners)
        if entry is None:
            continue
        about = parse_json(_member(entry, "metadata", str))
        found = {"name": _member(about, "name", str)}
        if "image-name" in about:  # not with --rootfs
            found["image"] = _member(about, "image-name", str)
        spec = _read_json(storage / jobid / "userdata" / "config.json", owners)
        if spec is not None:
            user = _member(_member(spec, "process", dict), "user", dict)
            found["container_user"] = str(_member(user, "uid", int))
        return found
    return {}


def _find_container(storage: Path, jobid: str, owners: Sequence[int]) -> dict[str, Any] | None:
    for name in ("containers.json", "volatile-containers.json"):
        entries = _read_json(storage / name, owners) or []
        if not isinstance(entries, list):
            raise ValueError(f"{storage / name}: expected a list")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("id") == jobid:
                return entry
    return None


def _read_json(path: Path, owners: Sequence[int]) -> Any:
    """The document; None if there is no such file. Raises OSError and ValueError."""
    try:
        with open_regular_file(path, owners) as (file, _):
            data = file.read(_MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"{path}: expected at most {_MAX_FILE_BYTES} bytes")
    return parse_json(data)


def _member(document: Any, key: str, kind: type) -> Any:
    value = document.get(key) if isinstance(document, Mapping) else None
    if isinstance(value, kind):
        return value
    raise ValueError(f"{key}: expected {kind.__name__}, got {type(value).__name__}")


JOB_MANAGERS = (
    JobManager("docker", _DOCKER, labels_from_files=_docker_labels),
    JobManager("podman", _PODMAN, labels_from_files=_podman_labels),
)
