"""The round-robin queue: a busy client does not delay the others."""

import threading
from queue import SimpleQueue

from hypothesis import given
from hypothesis import strategies as st

from batchjob_exporter.web.workers import RoundRobinQueue
from tests.helpers.waiting import scaled


def close_and_drain(queue):
    queue.close()
    return list(iter(queue.get, None))


def test_get_alternates_between_clients():
    queue = RoundRobinQueue(10)
    for client, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        assert queue.put(client, item)
    assert close_and_drain(queue) == [1, 4, 5, 2, 6, 3]


def test_full_client_is_refused_while_others_are_accepted():
    queue = RoundRobinQueue(2)
    assert [queue.put("a", item) for item in range(3)] == [True, True, False]
    assert queue.put("b", 3)
    queue.get()
    assert queue.put("a", 4)


def test_closed_queue_drains_and_refuses_new_items():
    queue = RoundRobinQueue(2)
    queue.put("a", 1)
    queue.close()
    assert not queue.put("a", 2)
    assert [queue.get(), queue.get(), queue.get()] == [1, None, None]


def test_withdraw_returns_last_item_of_client():
    queue = RoundRobinQueue(10)
    for client, item in (("a", 1), ("b", 2), ("a", 3)):
        queue.put(client, item)
    assert queue.lengths() == {"a": 2, "b": 1}
    assert [queue.withdraw(client) for client in ("a", "b", "b", "c")] == [3, 2, None, None]
    assert queue.lengths() == {"a": 1}
    assert close_and_drain(queue) == [1]


def test_waiting_threads_receive_item_or_end():
    queue, received = RoundRobinQueue(2), SimpleQueue()
    for _ in range(2):
        threading.Thread(target=lambda: received.put(queue.get())).start()
    queue.put("a", 1)
    assert received.get(timeout=scaled(10)) == 1
    queue.close()
    assert received.get(timeout=scaled(10)) is None


@given(st.lists(st.sampled_from("abcd")))
def test_no_item_is_lost_and_order_is_fair(clients):
    queue = RoundRobinQueue(100)
    for number, client in enumerate(clients):
        queue.put(client, (client, number))
    order = close_and_drain(queue)
    assert sorted(order, key=lambda item: item[1]) == list(zip(clients, range(1000), strict=False))
    for position, (client, number) in enumerate(order):
        others_before = [other for other, _ in order[:position] if other != client]
        own_before = sum(
            1 for other, earlier in order[:position] if other == client and earlier < number
        )
        assert all(others_before.count(other) <= own_before + 1 for other in "abcd")
