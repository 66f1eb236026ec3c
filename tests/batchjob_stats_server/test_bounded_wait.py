"""Few requests wait for a slow time series database, and none for long."""

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from batchjob_stats_server.bounded_wait import BoundedWait
from tests.e2e.processes import until


def soon():
    answer = Future()
    threading.Timer(0.02, answer.set_result, [None]).start()
    return answer


def test_all_wait_for_a_quick_database():
    bounded, answer = BoundedWait(max_waiting=1, seconds=60, slow_after=60), Future()
    with ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(bounded.wait, [soon(), answer]) for _ in range(4)]
        bounded.wait([soon()])
        assert not any(request.done() for request in requests)
        answer.set_result(None)
        for request in requests:
            request.result(60)


def test_nobody_waits_longer():
    BoundedWait(seconds=0.01).wait([Future()])


def test_one_waits_for_a_slow_database_and_others_go_on():
    bounded, answer = BoundedWait(max_waiting=1, seconds=60, slow_after=0), Future()
    bounded.wait([soon()])
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(bounded.wait, [answer]) for _ in range(2)]
        gone_on, waits = wait(both, 60, FIRST_COMPLETED)
        assert (len(gone_on), len(waits)) == (1, 1)
        answer.set_result(None)
        for request in both:
            request.result(60)


def test_its_place_is_free_again():
    bounded = BoundedWait(max_waiting=1, seconds=60, slow_after=0)
    for _ in range(3):
        answer = soon()
        bounded.wait([answer])
        assert answer.done()


def test_short_work_that_waits_does_not_hold_up_others(services):
    answer, begun, serial = Future(), threading.Event(), services.threads.serial
    bounded = BoundedWait(seconds=60, while_waiting=services.threads.while_waiting)

    def work():
        begun.set()
        bounded.wait([answer])
        return serial.is_busy()

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(services.threads.run_short, work)
        begun.wait(60)
        until(lambda: not serial.is_busy(), "the turn of others")
        assert not waits.done()
        answer.set_result(None)
        assert waits.result(60), "goes on without its turn"
    assert not serial.is_busy()
