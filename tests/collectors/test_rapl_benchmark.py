from benchmarks.rapl import SOCKETS, measure


def test_energy_lost_by_a_400_watt_amd_socket():
    loss = measure(SOCKETS[0], seconds=6 * 3600)
    assert abs(loss.corrected) < 0.001
    assert loss.raw > 0.15
