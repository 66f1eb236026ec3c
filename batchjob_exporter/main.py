"""The command `batchjob_exporter`."""

import gc
import logging
import os
import queue
import signal
import sys
import time

from batchjob import logs
from batchjob.sd_notify import notify
from batchjob.settings import SettingsError
from batchjob_exporter import exposition
from batchjob_exporter.http.web import Web
from batchjob_exporter.options import Settings, cpus_of, settings
from batchjob_exporter.service import Service, exporter_of

log = logging.getLogger(__name__)

_WATCHDOG_PATIENCE = 5.0  # seconds the server may take to show that it still turns


def main(arguments: list[str] | None = None) -> int:
    """Run the exporter; returns the exit status."""
    try:
        chosen = settings(sys.argv[1:] if arguments is None else arguments)
        logs.set_up(chosen.log)
        return {"serve": _serve, "once": _once, "check": _check}[chosen.action](chosen)
    except SettingsError as error:
        print(f"batchjob_exporter: {error}", file=sys.stderr)
        return 2


def _once(chosen: Settings) -> int:
    exporter = exporter_of(chosen)
    exporter.start()
    try:
        time.sleep(chosen.once_wait)
        body = exposition.render(exporter.collect())
    finally:
        exporter.stop()
    try:
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # `--once | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _check(chosen: Settings) -> int:
    """Say all that is wrong. Flags and file have been read already: what comes here is valid."""
    wrong = []
    try:
        Web(chosen.web.config_file)
    except SettingsError as error:
        wrong.append(str(error))
    try:
        exporter_of(chosen).stop()
    except SettingsError as error:
        wrong.append(str(error))
    for each in wrong:
        print(f"batchjob_exporter: {each}", file=sys.stderr)
    if not wrong:
        print("ok")
    return 2 if wrong else 0


def _serve(chosen: Settings) -> int:
    # A SimpleQueue may be filled from a signal handler; an Event may deadlock there.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    _keep_to(chosen.runtime.cpus)
    if os.geteuid() == 0:
        log.warning("running as root; docs/exporter.md says which capabilities are enough")
    service = Service(chosen)
    service.start()
    gc.collect()
    gc.freeze()  # what lives now lives for ever: later collections need not look at it
    notify("READY=1")
    try:
        _until_stopped(signals, service)
    finally:
        notify("STOPPING=1")
        service.stop()
    return 0


def _until_stopped(signals: "queue.SimpleQueue[int]", service: Service) -> None:
    """Wait for SIGTERM or SIGINT; SIGHUP re-reads the web configuration."""
    interval = _watchdog_interval()
    while True:
        try:
            number = signals.get(timeout=interval)
        except queue.Empty:
            if service.responds(_WATCHDOG_PATIENCE):
                notify("WATCHDOG=1")
            continue
        if number != signal.SIGHUP:
            log.info("stopping on %s", signal.Signals(number).name)
            return
        service.web.reload()


def _watchdog_interval() -> float | None:
    """Half of the time systemd allows between two signs of life (sd_watchdog_enabled(3))."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 2e6 if microseconds.isdigit() and meant else None


def _keep_to(cpus: str) -> None:
    """Keep this process, and what it starts, to some CPUs."""
    if cpus == "all":
        return
    usable = os.sched_getaffinity(0)
    wanted = {min(usable)} if cpus == "first" else cpus_of(cpus)
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        raise SettingsError(
            f"runtime.cpus: {cpus}: {error.strerror}; usable are {sorted(usable)}"
        ) from error
