"""The `batchjob_exporter` command: flags, output, exit status, and its life under systemd."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import batchjob
from batchjob_exporter.main import main
from batchjob_exporter.options import parse_settings
from batchjob_exporter.service import ExporterService
from tests.collectors.jobs.nodes import Node
from tests.helpers.processes import run
from tests.helpers.waiting import scaled

COMMAND = [sys.executable, "-m", "batchjob_exporter"]
ONLY_NODE = ["--collector.disable-defaults", "--collector.node"]


def run_exporter(*arguments, **more):
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
        **more,
    )


def test_once_prints_metrics():
    done = run_exporter("--once", *ONLY_NODE)
    assert (done.returncode, done.stderr) == (0, "")
    names = {family.name for family in text_string_to_metric_families(done.stdout)}
    assert {"batchjob_node_cpus", "batchjob_exporter_build_info", "process_open_fds"} <= names


def test_once_prints_running_jobs(tmp_path):
    node = Node(tmp_path)
    for number in range(20):
        node.add_job(f"job_{number}", pids=[100 + number])
        node.add_process(100 + number)
    node.add_job("job_77")  # a directory that was left behind
    paths = [f"--path.{name}={getattr(node.host, name)}" for name in ("procfs", "cgroupfs")]
    done = run_exporter("--once", "--collector.disable-defaults", "--collector.jobs", *paths)
    families = {each.name: each for each in text_string_to_metric_families(done.stdout)}
    shown = {sample.labels["jobid"] for sample in families["batchjob_job_info"].samples}
    assert shown == {str(number) for number in range(20)}
    assert families["batchjob_job_processes"].samples


def test_once_into_closed_pipe_is_silent():
    piped = f"{sys.executable} -m batchjob_exporter --once {' '.join(ONLY_NODE)} | true"
    done = subprocess.run(["sh", "-c", piped], capture_output=True, timeout=scaled(30), check=False)
    assert done.stderr == b""


def test_version():
    done = run_exporter("--version")
    assert done.stdout.startswith(f"batchjob_exporter {batchjob.__version__} (Python 3.")
    revised = run_exporter("--version", env=os.environ | {"BATCHJOB_REVISION": "abc"})
    assert "revision abc" in revised.stdout


def test_unknown_flag_exits_with_2():
    done = run_exporter("--web.listen-adress=:1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "batchjob_exporter: unknown flag --web.listen-adress; did you mean --web.listen-address?\n"
    )


def test_address_in_use_exits_with_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_exporter(
            *ONLY_NODE, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"
        )
    assert done.returncode == 1
    assert "web.listen-address: cannot listen on 127.0.0.1" in done.stderr
    assert done.stderr.count("\n") == 1


def test_check_validates_configuration(tmp_path, capsys):
    assert main(["--check", *ONLY_NODE]) == 0
    assert capsys.readouterr().out == "ok\n"
    assert main(["--check", *ONLY_NODE, "--path.procfs=/nothing"]) == 2
    assert "path.procfs: expected a directory, got '/nothing'" in capsys.readouterr().err
    web = tmp_path / "web.yml"
    web.write_text("tls_server_config:\n  cert_file: c.pem\n  key_file: k.pem\n")
    assert main(["--check", *ONLY_NODE, f"--web.config.file={web}"]) == 2
    assert f"{tmp_path}/c.pem: No such file" in capsys.readouterr().err


@contextlib.contextmanager
def running_exporter(*arguments, **environment):
    """An exporter process; killed after a minute, so that no test waits for ever."""
    process = subprocess.Popen(
        [*COMMAND, *ONLY_NODE, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    deadline = threading.Timer(scaled(60), process.kill)
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()


def read_log_until(process, text):
    """What the process has logged, up to the line with this text."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            break
    return "".join(lines)


@pytest.fixture
def notify_socket(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(scaled(20))
        receiver.bind(f"{tmp_path}/notify")
        yield receiver


def test_systemd_readiness_watchdog_reload_and_stop(notify_socket, tmp_path):
    web = tmp_path / "web.yml"
    web.write_text("http_server_config:\n  http2: false\n")
    path = f"{tmp_path}/http"
    with running_exporter(
        f"--web.listen-address=unix:{path}",
        f"--web.config.file={web}",
        NOTIFY_SOCKET=notify_socket.getsockname(),
        WATCHDOG_USEC="200000",
    ) as process:
        assert notify_socket.recv(100) == b"READY=1"
        assert notify_socket.recv(100) == b"WATCHDOG=1"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET /-/ready HTTP/1.0\r\n\r\n")
            assert b" 200 OK" in client.recv(1000)
        assert notify_socket.recv(100) == b"WATCHDOG=1"
        web.write_text("nonsense: 1\n")
        process.send_signal(signal.SIGHUP)
        log = read_log_until(process, "web configuration not reloaded")
        process.send_signal(signal.SIGTERM)
        log += process.stderr.read()
        assert process.wait(scaled(20)) == 0
    assert "web configuration not reloaded" in log
    assert "stopping on SIGTERM" in log
    assert not os.path.exists(path)


def test_watchdog_stops_when_listener_is_unreachable(notify_socket, tmp_path):
    path = f"{tmp_path}/http"
    with running_exporter(
        f"--web.listen-address=unix:{path}",
        NOTIFY_SOCKET=notify_socket.getsockname(),
        WATCHDOG_USEC="200000",
    ) as process:
        assert notify_socket.recv(100) == b"READY=1"
        assert notify_socket.recv(100) == b"WATCHDOG=1"
        os.unlink(path)
        notify_socket.settimeout(1)
        with contextlib.suppress(TimeoutError):  # a few were sent before
            for _ in range(10):
                notify_socket.recv(100)
        with pytest.raises(TimeoutError):
            notify_socket.recv(100)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=scaled(20))
    assert f"no answer on unix:{path}" in log


def test_two_exporters_in_one_process():
    services = [
        ExporterService(parse_settings([*ONLY_NODE, "--web.listen-address=127.0.0.1:0"]))
        for _ in range(2)
    ]
    for service in services:
        service.start()
    for service in services:
        with urllib.request.urlopen(
            f"http://{service.addresses[0]}/metrics", timeout=scaled(10)
        ) as response:
            assert b"batchjob_node_cpus" in response.read()
        assert service.is_answering(5)
    for service in services:
        service.stop()


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        (["--web.listen-address=127.0.0.1:0"], False),
        (["--web.listen-address=:0"], True),
        (["--web.listen-address=:0", "--web.allow-from=10.0.0.0/8"], False),
    ],
)
def test_warning_when_metrics_are_readable_by_everybody(arguments, warned, caplog):
    service = ExporterService(parse_settings([*ONLY_NODE, *arguments]))
    service.start()
    service.stop()
    assert any("anybody who can reach this node" in text for text in caplog.messages) is warned


def test_broken_collector_does_not_stop_the_others(monkeypatch, caplog):
    import collectors.node

    def build(host, options, built):
        raise OSError("no such device")

    broken = collectors.node.COLLECTOR._replace(build=build)
    monkeypatch.setattr(collectors.node, "COLLECTOR", broken)
    service = ExporterService(parse_settings([*ONLY_NODE, "--web.listen-address=127.0.0.1:0"]))
    service.start()
    with urllib.request.urlopen(
        f"http://{service.addresses[0]}/metrics", timeout=scaled(10)
    ) as response:
        assert b'batchjob_scrape_collector_success{collector="node"} 0.0' in response.read()
    service.stop()
    assert "collector node cannot be created" in caplog.text


def test_service_imports_no_heavy_libraries():
    """What a node pays for: no TLS, no HTTP library, no bcrypt unless they are configured.

    `_hashlib` is OpenSSL's library, 4 MB, which `secrets`, `hashlib` and `hmac` load as well.
    """
    script = (
        "import sys; from batchjob_exporter.service import ExporterService; "
        "from batchjob_exporter.options import parse_settings; "
        "ExporterService(parse_settings(['--web.listen-address=127.0.0.1:0', "
        "'--web.disable-exporter-metrics', '--collector.disable-defaults'])); "
        "print(*sorted({'ssl', 'http.client', 'bcrypt', 'prometheus_client', 'requests', "
        "'pynvml', 'pyghmi', 'sqlalchemy', 'asyncio', 'email', '_hashlib', 'statistics', 'html'} "
        "& set(sys.modules)))"
    )
    done = run([sys.executable, "-c", script], timeout=30, check=True)
    assert done.stdout.strip() == ""
