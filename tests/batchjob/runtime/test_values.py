"""Parsers of option values and their error messages."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.values import (
    address,
    at_least_one,
    boolean,
    duration,
    http_url,
    integer,
    network,
    number,
    one_of,
    parse_cpu_list,
    service_url,
    size,
    text,
)

PARSERS = (
    address, at_least_one, boolean, duration, http_url, integer, network, number, service_url,
    size, text,
    one_of("a", "b"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90", 90),
        (90, 90),
        (0.5, 0.5),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1w", 604800),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("0s", 0),
    ],
)
def test_durations(value, seconds):
    assert duration(value) == seconds


@pytest.mark.parametrize(
    "value",
    ["", "s", "5x", "m5", "-5s", "1..5s", "5 m", True, None, [], "nan", "inf", "²", "36501d", 1e10],
)
def test_invalid_durations(value):
    with pytest.raises(ValueError, match="expected a duration"):
        duration(value)


@given(st.text() | st.floats() | st.integers() | st.booleans() | st.none())
@pytest.mark.parametrize("parse", PARSERS)
def test_parser_returns_value_or_states_what_it_expected(parse, value):
    try:
        parse(value)
    except ValueError as error:
        message = str(error)
    else:
        return
    assert message.startswith("expected ")


@pytest.mark.parametrize(
    ("value", "host", "port"),
    [(":10912", "", 10912), ("127.0.0.1:1", "127.0.0.1", 1), ("[::1]:0", "::1", 0)],
)
def test_addresses(value, host, port):
    assert address(value) == (host, port)
    assert str(address(value)) == value


@pytest.mark.parametrize("value", ["", "10912", "::1:80", ":65536", ":-1", "[::1]", 10912, ":٣"])
def test_invalid_addresses(value):
    with pytest.raises(ValueError, match="expected HOST:PORT or :PORT"):
        address(value)


@pytest.mark.parametrize(
    ("value", "url"),
    [("http://a", "http://a"), ("https://u:p@b:1/c/", "https://u:p@b:1/c")],
)
def test_http_url_strips_trailing_slash(value, url):
    assert http_url(value) == url


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a:9090",
        "ftp://a",
        "http://",
        "http://[a",
        "http://a/?b",
        "http://a:99999",
        "http://a:x",
    ],
)
def test_invalid_http_urls(value):
    with pytest.raises(ValueError, match="expected http://HOST or https://HOST"):
        http_url(value)


@pytest.mark.parametrize("text", ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1"])
def test_networks(text):
    assert network(text) == ip_network(text)


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "host", "10.0.0.0/33"])
def test_invalid_networks(text):
    with pytest.raises(ValueError, match="expected a network"):
        network(text)


@pytest.mark.parametrize("url", ["http://a:6820", "unix:/run/rest.sock", "unix:///run/rest.sock"])
def test_service_urls(url):
    assert service_url(url) == url


@pytest.mark.parametrize("value", ["http://u:p@a", "http://a:99999", "unix://a/b", "unix:a", 5])
def test_invalid_service_urls(value):
    with pytest.raises(ValueError, match="expected http://host:port, https://host:port or unix:"):
        service_url(value)


def test_cpu_lists():
    assert parse_cpu_list("0,2-4,9") == {0, 2, 3, 4, 9}
    with pytest.raises(ValueError, match="expected CPUs such as"):
        parse_cpu_list("5-2")
