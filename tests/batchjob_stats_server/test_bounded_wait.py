"""Few requests wait for a slow time series database, and none for long."""

from concurrent.futures import Future, ThreadPoolExecutor

from batchjob_stats_server.bounded_wait import BoundedWait


def test_it_waits_for_answers():
    answer = Future()
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(BoundedWait(seconds=60).wait, [answer])
        answer.set_result(None)
        request.result(60)


def test_nobody_waits_longer():
    BoundedWait(seconds=0.01).wait([Future()])


def test_a_request_goes_on_while_others_wait():
    bounded, answer = BoundedWait(places=1, seconds=60), Future()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bounded.wait, [answer])
        while not waiting.running():
            pass
        bounded.wait([answer])
        bounded.wait([Future()])
        assert not waiting.done() or not answer.done()
        answer.set_result(None)
        waiting.result(60)


def test_its_place_is_free_again():
    bounded = BoundedWait(places=1, seconds=0.01)
    for _ in range(3):
        bounded.wait([Future()])
