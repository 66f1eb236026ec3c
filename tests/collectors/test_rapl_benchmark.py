from benchmarks.rapl import SOCKETS, measure


def test_a_400_w_amd_socket_loses_nothing_where_the_raw_counter_loses_a_sixth():
    loss = measure(SOCKETS[0], seconds=6 * 3600)
    assert abs(loss.corrected) < 0.001
    assert loss.raw > 0.15
