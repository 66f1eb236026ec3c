"""The current GPUs of a node."""

from batchjob.quantities.gpu import GPU_POWER, JOB_GPU_INFO
from batchjob_stats_db.timeseries.base import SeriesValue
from batchjob_stats_server.cluster_readings import gpus_of


def test_gpu_claimed_only_by_environment_is_not_confirmed():
    """A user who names the GPU of another in his environment must not see its usage."""
    series = []
    for gpu, confirmed in (("0", ("true",)), ("1", ("false",)), ("2", ("true", "false"))):
        labels = {"gpu": gpu, "uuid": f"GPU-{gpu}"}
        series.append(SeriesValue(GPU_POWER.name, labels, 300.0))
        for number, value in enumerate(confirmed):
            info_labels = {**labels, "jobid": str(number), "confirmed": value}
            series.append(SeriesValue(JOB_GPU_INFO.name, info_labels, 1.0))
    assert [(gpu.gpu, gpu.jobids, gpu.confirmed) for gpu in gpus_of(series)] == [
        ("0", ("0",), True), ("1", ("0",), False), ("2", ("0", "1"), False)
    ]  # fmt: skip
