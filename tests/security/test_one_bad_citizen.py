"""One node, job, record, file, log, page, port or database turns hostile; nobody else notices.

No figure of another person changes, and no part stops for longer than a poll.
"""

import os
import random
from collections import Counter

import pytest

from tests.security.citizens import CITIZENS
from tests.security.guards import GUARDS
from tests.security.one_bad_citizen import Site

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of several users")

GENERATED = 10_000
_ACTS_OF_A_SITE = 100  # after which a new one is built, since its database grows


@pytest.fixture
def new_site(tmp_path_factory):
    """Builds a site."""
    sites = []

    def build() -> Site:
        if sites:
            sites.pop().close()
        sites.append(Site(tmp_path_factory.mktemp("site")))
        return sites[-1]

    yield build
    for site in sites:
        site.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of all citizens, one after the other."""
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.close()


def test_each_kind_has_four_citizens():
    assert min(Counter(each.kind for each in CITIZENS).values()) >= 4
    assert len({each.kind for each in CITIZENS}) == 10


@pytest.mark.parametrize("citizen", CITIZENS, ids=lambda each: each.name)
def test_one_bad_citizen(site, citizen):
    citizen.act(site, random.Random(1))
    site.work()


def test_thousands_of_bad_citizens(new_site, long_form):
    if not long_form:
        pytest.skip("needs --long")
    dice = random.Random()
    for number in range(GENERATED):
        if number % _ACTS_OF_A_SITE == 0:
            site = new_site()
        citizen, seed = dice.choice(CITIZENS), dice.getrandbits(64)
        try:
            citizen.act(site, random.Random(seed))
            site.work()
        except Exception as error:
            error.add_note(f"{citizen.name} with random.Random({seed})")
            raise


def test_guards_are_in_their_places():
    for guard in GUARDS.values():
        with guard.taken_out():
            assert guard.parts


@pytest.mark.parametrize("name", GUARDS)
def test_without_a_guard_a_citizen_succeeds(new_site, long_form, name):
    """Or the guard would protect nobody, or no citizen would look for it."""
    if not long_form:
        pytest.skip("needs --long")
    guard, site = GUARDS[name], new_site()

    def attack():
        for seed in range(20):
            guard.citizen(site, random.Random(seed))
            site.work()

    with guard.taken_out(), pytest.raises(Exception) as raised:  # noqa: PT011
        attack()
    # The replacement of a guard must be called as the guard is.
    assert not isinstance(raised.value, TypeError | AttributeError | NameError), raised.value
