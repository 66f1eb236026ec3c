"""The command `batchjob_exporter`."""

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import time

from batchjob.runtime import log as logs
from batchjob.runtime.output import run_with_stdout
from batchjob.runtime.settings import SettingsError, exit_status
from batchjob.runtime.signals import Signals, notify
from batchjob_exporter import exposition
from batchjob_exporter.options import ExporterSettings, parse_settings
from batchjob_exporter.service import ExporterService, build_exporter
from batchjob_exporter.web.auth import WebAccess

log = logging.getLogger(__name__)

_FIRST_VALUES_TIMEOUT_SECONDS = 5.0  # how long --once waits for jobs to be identified
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_FROM_BYTES = 128 << 10
_WATCHDOG_TIMEOUT_SECONDS = 10.0  # for a listener to answer the watchdog


def main(arguments: list[str] | None = None) -> int:
    """Run the exporter; exit status 2 for wrong settings, 1 for errors that may pass."""
    try:
        settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
        logs.set_up(settings.log)
        return {"serve": _serve, "once": _print_once, "check": _check_settings}[settings.action](
            settings
        )
    except SettingsError as error:
        print(f"batchjob_exporter: {error}", file=sys.stderr)
        return exit_status(error)


def _print_once(settings: ExporterSettings) -> int:
    exporter = build_exporter(settings)
    exporter.start()
    try:
        exporter.wait(_FIRST_VALUES_TIMEOUT_SECONDS)
        time.sleep(settings.once_wait)
        body = exposition.render(exporter.collect())
    finally:
        exporter.stop()

    def write() -> int:
        sys.stdout.buffer.write(body)
        return 0

    return run_with_stdout("batchjob_exporter", write)


def _check_settings(settings: ExporterSettings) -> int:
    """Report all errors. Flags and file have been parsed already."""
    status = 0
    for check in (
        lambda: WebAccess(settings.web.config_file),
        lambda: build_exporter(settings).stop(),
    ):
        try:
            check()
        except SettingsError as error:
            print(f"batchjob_exporter: {error}", file=sys.stderr)
            status = 2
    if not status:
        print("ok")
    return status


def _serve(settings: ExporterSettings) -> int:
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    _configure_malloc()
    if os.geteuid() == 0:
        log.warning("running as root; docs/exporter.md says which capabilities are enough")
    service = ExporterService(settings)
    service.start()
    gc.collect()
    gc.freeze()  # existing objects live until exit: later collections can skip them
    notify("READY=1")
    try:
        _wait_for_stop(signals, service)
    finally:
        notify("STOPPING=1")
        service.stop()
    return 0


def _wait_for_stop(signals: Signals, service: ExporterService) -> None:
    """Wait for SIGTERM or SIGINT; SIGHUP re-reads the web configuration."""
    interval = _watchdog_interval()
    while True:
        received = signals.wait(interval)
        if not received and service.is_answering(_WATCHDOG_TIMEOUT_SECONDS):
            notify("WATCHDOG=1")
        elif not received:
            log.error("no answer on %s", ", ".join(service.addresses))
        for each in received:
            if each != signal.SIGHUP:
                log.info("stopping on %s", each.name)
                return
            service.web.reload()


def _watchdog_interval() -> float | None:
    """Half of the watchdog interval that systemd has set (sd_watchdog_enabled(3))."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    for_this_process = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 2e6 if microseconds.isdigit() and for_this_process else None


def _configure_malloc() -> None:
    """Have the memory of each scrape returned to the kernel: mallopt(3).

    By default, glibc raises the size from which a buffer is mapped by itself to the largest that
    was freed; texts of scrapes then come from the heap and fragment it.
    """
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(parameter, _MMAP_FROM_BYTES)
