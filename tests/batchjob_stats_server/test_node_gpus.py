"""The GPUs of a node by now."""

from batchjob.quantities.gpu import GPU_POWER, JOB_GPU_INFO
from batchjob_stats_db.timeseries.base import SeriesValue
from batchjob_stats_server.cluster_readings import gpus_of


def test_what_only_an_environment_claims_is_not_confirmed():
    """Whoever writes a foreign GPU into an environment must not see what others do with it."""
    found = []
    for gpu, confirmed in (("0", ("true",)), ("1", ("false",)), ("2", ("true", "false"))):
        labels = {"gpu": gpu, "uuid": f"GPU-{gpu}"}
        found.append(SeriesValue(GPU_POWER.name, labels, 300.0))
        for number, each in enumerate(confirmed):
            held = {**labels, "jobid": str(number), "confirmed": each}
            found.append(SeriesValue(JOB_GPU_INFO.name, held, 1.0))
    assert [(gpu.gpu, gpu.jobids, gpu.confirmed) for gpu in gpus_of(found)] == [
        ("0", ("0",), True), ("1", ("0",), False), ("2", ("0", "1"), False)
    ]  # fmt: skip
