"""Turns: whoever puts much into the queue waits behind those who put little."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.round_robin_queue import RoundRobinQueue


def taken(queue):
    queue.close()
    return list(iter(queue.get, None))


def test_by_turns():
    queue = RoundRobinQueue(10)
    for client, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)):
        assert queue.put(client, item)
    assert taken(queue) == [1, 4, 5, 2, 6, 3]


def test_a_full_line_takes_nothing_more_and_others_are_open():
    queue = RoundRobinQueue(2)
    assert [queue.put("a", item) for item in range(3)] == [True, True, False]
    assert queue.put("b", 3)
    queue.get()
    assert queue.put("a", 4)


def test_a_closed_queue_gives_what_it_has_and_takes_nothing():
    queue = RoundRobinQueue(2)
    queue.put("a", 1)
    queue.close()
    assert not queue.put("a", 2)
    assert [queue.get(), queue.get(), queue.get()] == [1, None, None]


def test_the_last_item_of_a_client_can_be_taken_back():
    queue = RoundRobinQueue(10)
    for client, item in (("a", 1), ("b", 2), ("a", 3)):
        queue.put(client, item)
    assert queue.lengths() == {"a": 2, "b": 1}
    assert [queue.withdraw(client) for client in ("a", "b", "b", "c")] == [3, 2, None, None]
    assert queue.lengths() == {"a": 1}
    assert taken(queue) == [1]


def test_without_waiting():
    queue = RoundRobinQueue(10)
    assert queue.get_nowait() is None
    for client, item in (("a", 1), ("a", 2), ("b", 3)):
        queue.put(client, item)
    assert len(queue) == 3
    assert [queue.get_nowait() for _ in range(4)] == [1, 3, 2, None]
    assert len(queue) == 0


def test_who_waits_gets_the_item_or_the_end():
    queue, got = RoundRobinQueue(2), []
    threads = [threading.Thread(target=lambda: got.append(queue.get())) for _ in range(2)]
    for thread in threads:
        thread.start()
    queue.put("a", 1)
    while not got:
        pass
    queue.close()
    for thread in threads:
        thread.join(10)
    assert got == [1, None]


@given(st.lists(st.sampled_from("abcd")))
def test_nothing_is_lost_and_nobody_waits_for_two_of_another(clients):
    queue = RoundRobinQueue(100)
    for number, client in enumerate(clients):
        queue.put(client, (client, number))
    order = taken(queue)
    assert sorted(order, key=lambda item: item[1]) == list(zip(clients, range(1000), strict=False))
    for at, (client, number) in enumerate(order):
        ahead = [other for other, _ in order[:at] if other != client]
        mine = sum(1 for other, earlier in order[:at] if other == client and earlier < number)
        assert all(ahead.count(other) <= mine + 1 for other in "abcd")
