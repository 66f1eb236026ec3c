"""Few requests wait for a slow time series database, and none for long."""

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from batchjob_stats_server.bounded_wait import BoundedWait
from tests.helpers.waiting import scaled, until


def answer_soon():
    """A future that is done shortly afterwards."""
    answer = Future()
    threading.Timer(0.02, answer.set_result, [None]).start()
    return answer


def test_all_requests_wait_for_fast_database():
    bounded, answer = BoundedWait(max_waiting=1, seconds=60, slow_after=60), Future()
    with ThreadPoolExecutor(4) as pool:
        requests = [pool.submit(bounded.wait, [answer_soon(), answer]) for _ in range(4)]
        bounded.wait([answer_soon()])
        assert not any(request.done() for request in requests)
        answer.set_result(None)
        for request in requests:
            request.result(scaled(60))


def test_wait_ends_after_timeout():
    BoundedWait(seconds=0.01).wait([Future()])


def test_only_one_request_waits_for_slow_database():
    bounded, answer = BoundedWait(max_waiting=1, seconds=60, slow_after=0), Future()
    bounded.wait([answer_soon()])
    with ThreadPoolExecutor(2) as pool:
        requests = [pool.submit(bounded.wait, [answer]) for _ in range(2)]
        continued, waiting = wait(requests, 60, FIRST_COMPLETED)
        assert (len(continued), len(waiting)) == (1, 1)
        answer.set_result(None)
        for request in requests:
            request.result(scaled(60))


def test_waiting_place_is_freed_after_answer():
    bounded = BoundedWait(max_waiting=1, seconds=60, slow_after=0)
    for _ in range(3):
        answer = answer_soon()
        bounded.wait([answer])
        assert answer.done()


def test_waiting_short_work_gives_its_turn_to_others(services):
    answer, started, serial = Future(), threading.Event(), services.threads.serial
    bounded = BoundedWait(seconds=60, while_waiting=services.threads.while_waiting)

    def work():
        started.set()
        bounded.wait([answer])
        return serial.is_busy()

    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(services.threads.run_short, work)
        started.wait(scaled(60))
        until(lambda: not serial.is_busy(), "the turn of others")
        assert not request.done()
        answer.set_result(None)
        assert request.result(scaled(60)), "goes on without its turn"
    assert not serial.is_busy()
