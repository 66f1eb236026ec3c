"""PBS licences from the server, and fair share from pbsfs(8B)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.subprocesses import SchedulerError, parse_json_object
from batchjob.schedulers.cluster import ClusterOptions, License
from batchjob.schedulers.pbs import cluster as pbs
from batchjob.schedulers.pbs.cluster_shares import fairshare, licenses
from tests.helpers.waiting import scaled

INFINITE = float("inf")
# Resources of a server, as `qmgr -c "print server"` lists them.
RESOURCES = b"""\
create resource matlab
set resource matlab type = long
set resource matlab flag = q
create resource ansys
set resource ansys type = long
set resource ansys flag = q
create resource ngpus
set resource ngpus type = long
set resource ngpus flag = hn
create resource site
set resource site type = long
set server resources_available.matlab = 20
"""
# The example of pbsfs(8B), printed by the format of pbsfs.cpp.
PBSFS = """\
Fairshare usage units are in: cput
TREEROOT  : Grp: -1     cgrp: 0    Shares: -1     Usage: 1201   Perc: 100.000%
group2    : Grp: 0      cgrp: 20   Shares: 60     Usage: 1001   Perc: 60.000%
pbsuser3  : Grp: 20     cgrp: 22   Shares: 40     Usage: 1000   Perc: 24.000%
pbsuser2  : Grp: 20     cgrp: 21   Shares: 60     Usage: 1      Perc: 36.000%
group1    : Grp: 0      cgrp: 10   Shares: 40     Usage: 201    Perc: 40.000%
pbsuser1  : Grp: 10     cgrp: 12   Shares: 50     Usage: 101    Perc: 20.000%
pbsuser   : Grp: 10     cgrp: 11   Shares: 50     Usage: 101    Perc: 20.000%
unknown   : Grp: 0      cgrp: 1    Shares: 0      Usage: 1      Perc:  0.000%
"""


def server_document(**attributes):
    return {"Server": {"pbs01": attributes}}


def test_openpbs_has_no_licences(recorded_output):
    answer = parse_json_object(recorded_output("openpbs-23.06/qstat-Bf.json"))
    assert answer["Server"]["pbs01"]["license_count"].startswith("Avail_Global:1000000 ")
    assert licenses(answer, recorded_output("openpbs-23.06/qmgr-print-server.txt")) == []


def test_pbs_licences_from_a_licence_server():
    counts = "Avail_Global:300 Avail_Local:60 Used:140 High_Use:180"
    answer = server_document(pbs_license_info="6200@licences", license_count=counts)
    assert licenses(answer, b"") == [License("PBS", 500, 140, 360, None)]
    answer = server_document(pbs_license_info="6200@licences", license_count="Avail_Sockets:4")
    assert licenses(answer, b"") == []


def test_consumable_server_resource_is_a_licence():
    answer = server_document(
        resources_available={"matlab": 20, "ansys": "4", "ngpus": 8, "site": 1, "ncpus": 512},
        resources_assigned={"matlab": 5, "ncpus": 96, "mem": "100mb"},
    )
    assert licenses(answer, RESOURCES) == [
        License("matlab", 20, 5, 15, None),
        License("ansys", 4, 0, 4, None),  # never used yet
    ]


def test_free_licences_are_not_negative():
    answer = server_document(resources_available={"matlab": 2}, resources_assigned={"matlab": 3})
    assert licenses(answer, RESOURCES) == [License("matlab", 2, 3, 0, None)]


def fairshare_by_account(output, entities=False):
    return {share.account: tuple(share[1:4]) for share in fairshare(output.encode(), entities)}


def test_fairshare_of_groups():
    assert fairshare_by_account(PBSFS) == {
        "group2": (0.6, 1000 / 1200, pytest.approx(0.6 / (1000 / 1200))),
        "group1": (0.4, 200 / 1200, pytest.approx(0.4 / (200 / 1200))),
    }


def test_fairshare_of_entities():
    shares_by_account = fairshare_by_account(PBSFS, entities=True)
    assert shares_by_account["pbsuser3"] == (0.4, 0.999, pytest.approx(0.4 / 0.999))
    assert shares_by_account["pbsuser2"] == (0.6, 0.0, INFINITE)
    assert shares_by_account["pbsuser1"] == shares_by_account["pbsuser"] == (0.5, 0.5, 1.0)
    assert shares_by_account["unknown"] == (0.0, 0.0, None)  # no share and no usage


def test_unused_fairshare_tree_has_no_usage():
    tree = """\
TREEROOT  : Grp: -1     cgrp: 0    Shares: -1     Usage: 1      Perc: 100.000%
chemistry-and-physics: Grp: 0      cgrp: 12345Shares: 10     Usage: 1      Perc: 100.000%
alice     : Grp: 12345  cgrp: 6    Shares: 1      Usage: 1      Perc: 100.000%
"""
    assert fairshare_by_account(tree) == {"chemistry-and-physics": (1.0, None, None)}


def test_output_without_fairshare_tree_is_an_error():
    with pytest.raises(SchedulerError, match="TREEROOT"):
        fairshare(b"Unable to access fairshare data: Permission denied\n")


def test_commands_for_licences_and_fairshare(install_command):
    install_command("qstat", **{"-B -f -F json": json.dumps(server_document()).encode()})
    install_command("qmgr", **{"-c print server": RESOURCES})
    install_command("pbsfs", **{"": PBSFS.encode()})
    readers = pbs.command_readers(ClusterOptions(timeout=scaled(5)))
    assert readers.fairshare is None  # pbsfs needs root, so only if configured
    readers_with_pbsfs = pbs.command_readers(ClusterOptions(timeout=scaled(5), pbsfs="pbsfs -p"))
    assert readers_with_pbsfs.licenses() == []
    assert [share.account for share in readers_with_pbsfs.fairshare()] == ["group2", "group1"]
    readers_with_users = pbs.command_readers(
        ClusterOptions(timeout=scaled(5), pbsfs="pbsfs -p", users=True)
    )
    assert len(readers_with_users.fairshare()) == 7


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON, JSON, st.text())
def test_arbitrary_server_answer_is_accepted(available, assigned, counts):
    answer = server_document(resources_available=available, resources_assigned=assigned,
                    pbs_license_info="x", license_count=counts)  # fmt: skip
    licenses(answer, RESOURCES)
    licenses({"Server": available}, counts.encode("utf-8", "replace"))


NUMBERS = st.integers(-(10**6), 10**6)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS)))
def test_arbitrary_fairshare_tree_is_accepted(vertices):
    lines = [
        f"v{number}: Grp: {parent} cgrp: {group}Shares: {share_count} Usage: {usage} Perc: 1.000%"
        for number, (parent, group, share_count, usage) in enumerate(vertices)
    ]
    for share in fairshare("\n".join([PBSFS, *lines]).encode(), entities=True):
        assert share.shares >= 0
        assert share.usage is None or share.usage >= 0
