"""PBS licences from the server."""

import json

from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.subprocesses import parse_json_object
from batchjob.schedulers.cluster import ClusterOptions, License
from batchjob.schedulers.pbs import cluster as pbs
from batchjob.schedulers.pbs.cluster import licenses
from tests.helpers.waiting import scaled

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


def server_document(**attributes):
    return {"Server": {"pbs01": attributes}}


def test_openpbs_has_no_licences(recorded_output):
    answer = parse_json_object(recorded_output("openpbs-23.06/qstat-Bf.json"))
    assert answer["Server"]["pbs01"]["license_count"].startswith("Avail_Global:1000000 ")
    assert licenses(answer, recorded_output("openpbs-23.06/qmgr-print-server.txt")) == []


def test_pbs_licences_from_a_licence_server():
    counts = "Avail_Global:300 Avail_Local:60 Used:140 High_Use:180"
    answer = server_document(pbs_license_info="6200@licences", license_count=counts)
    assert licenses(answer, b"") == [License("PBS", 500, 140)]
    answer = server_document(pbs_license_info="6200@licences", license_count="Avail_Sockets:4")
    assert licenses(answer, b"") == []


def test_consumable_server_resource_is_a_licence():
    answer = server_document(
        resources_available={"matlab": 20, "ansys": "4", "ngpus": 8, "site": 1, "ncpus": 512},
        resources_assigned={"matlab": 5, "ncpus": 96, "mem": "100mb"},
    )
    assert licenses(answer, RESOURCES) == [
        License("matlab", 20, 5),
        License("ansys", 4, 0),  # never used yet
    ]


def test_free_licences_are_not_negative():
    answer = server_document(resources_available={"matlab": 2}, resources_assigned={"matlab": 3})
    assert licenses(answer, RESOURCES) == [License("matlab", 2, 3)]


def test_commands_for_licences(install_command):
    install_command("qstat", **{"-B -f -F json": json.dumps(server_document()).encode()})
    install_command("qmgr", **{"-c print server": RESOURCES})
    assert pbs.command_readers(ClusterOptions(timeout=scaled(5))).licenses() == []


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
