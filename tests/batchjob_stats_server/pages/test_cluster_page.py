"""How full a cluster is, for everybody."""

from tests.batchjob_stats_server.pages.conftest import words
from tests.batchjob_stats_server.pages.test_pages import table


def test_everybody_sees_the_queues_and_nobody_elses_jobs(page):
    document = page("bob", "/clusters/c1")
    assert table(document, "Partitions") == [
        [
            "cpu",
            "1",
            "1",
            "4",
            "0",
            "1",
            "0",
            "0",
            "\u2013fewer than ten jobs started in the last 30 days",
        ]
    ]
    assert "carol" not in words(document.find(".//main"))
    assert "alice" not in words(document.find(".//main"))
