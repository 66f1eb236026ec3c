"""An exporter that also keeps samples of its node's jobs in files, as `batchjob up` does.

python -m tests.e2e.recording DIRECTORY FLAG...
"""

import signal
import sys
from pathlib import Path

from batchjob.runtime import log as logs
from batchjob_exporter.options import parse_settings
from batchjob_exporter.service import ExporterService
from batchjob_stats_db.samples.recorder import Recorder, RecorderOptions
from collectors.job_samples import samples_reader

_FIRST_VALUES_SECONDS = 2.0


def main() -> None:
    """Record and serve until SIGTERM."""
    directory, *flags = sys.argv[1:]
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # in all threads, for sigwait
    chosen = parse_settings(flags)
    logs.set_up(chosen.log)
    service = ExporterService(chosen)
    read_samples = samples_reader(service.collectors)
    assert read_samples
    recorder = Recorder(read_samples, Path(directory), RecorderOptions())
    service.start()
    service.wait(_FIRST_VALUES_SECONDS)
    recorder.start()
    signal.sigwait(ends)
    recorder.stop()
    service.stop()


if __name__ == "__main__":
    main()
