"""Where the documents of a Redfish service contain the power of the node."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.power.meter import BmcError
from collectors.power.redfish.power import (
    find_locations,
    read_control,
    read_environment,
    read_inputs,
)
from tests.simulated.redfish_service import ROOT, collection, link, one_node

CHASSIS = "/redfish/v1/Chassis/1"
SYSTEM = "/redfish/v1/Systems/1"


def document_reader(documents):
    def get_document(path):
        if path not in documents:
            raise BmcError("status", f"{path}: status 404")
        return documents[path]

    return get_document


def node_watts(documents, chassis=(), system=""):
    get_document = document_reader(documents)
    return {name: read() for name, read in find_locations(get_document, chassis, system)}


def documents_with_power(*members, **fields):
    power = {"PowerControl": list(members), **fields}
    return one_node(Power=link(f"{CHASSIS}/Power")) | {f"{CHASSIS}/Power": power}


def test_environment_metrics_are_preferred():
    documents = one_node(
        EnvironmentMetrics=link(f"{CHASSIS}/EnvironmentMetrics"), Power=link(f"{CHASSIS}/Power")
    ) | {
        f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": {"Reading": 374}},
        f"{CHASSIS}/Power": {"PowerControl": [{"PowerConsumedWatts": 344}]},
    }
    assert node_watts(documents) == {"1": 374}


@pytest.mark.parametrize("nonsense", [None, [], {}, 7, "Spaceship"])
def test_chassis_whose_type_makes_no_sense_is_no_part_of_another(nonsense):
    documents = documents_with_power({"PowerConsumedWatts": 344})
    documents[CHASSIS] = {**documents[CHASSIS], "ChassisType": nonsense}
    assert node_watts(documents) == {"1": 344}


@pytest.mark.parametrize("reading", [None, 0, "", True, -5, "NaN", 10**400, {}])
def test_invalid_reading_falls_back_to_the_next_resource(reading):
    documents = one_node(
        EnvironmentMetrics=link(f"{CHASSIS}/EnvironmentMetrics"), Power=link(f"{CHASSIS}/Power")
    ) | {
        f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": {"Reading": reading}},
        f"{CHASSIS}/Power": {"PowerControl": [{"PowerConsumedWatts": "344"}]},
    }
    assert node_watts(documents) == {"1": 344}


def test_broken_link_falls_back_to_the_next_resource():
    documents = documents_with_power({"PowerConsumedWatts": 344})
    documents[CHASSIS]["EnvironmentMetrics"] = link(f"{CHASSIS}/EnvironmentMetrics")
    assert node_watts(documents) == {"1": 344}


@pytest.mark.parametrize(
    ("members", "watts"),
    [
        ([{"PowerConsumedWatts": 344}, {"PowerConsumedWatts": 53}], 344),
        (
            [
                {"PowerConsumedWatts": 900, "RelatedItem": [link(CHASSIS)]},
                {"PowerConsumedWatts": 344, "RelatedItem": [link(SYSTEM)]},
            ],
            344,
        ),
        (
            [
                {"Name": "CPU Power Control", "PowerConsumedWatts": 120},
                {"Name": "System Input Power", "PowerConsumedWatts": 344},
            ],
            344,
        ),
    ],
)
def test_power_control_members_are_not_added(members, watts):
    assert node_watts(documents_with_power(*members)) == {"1": watts}


def test_inputs_of_enabled_supplies_are_added():
    supplies = [
        {"PowerInputWatts": 200, "Status": {"State": "Enabled"}},
        {"PowerInputWatts": 0},
        {"PowerInputWatts": None, "Status": {"State": "Absent"}},
    ]
    assert node_watts(documents_with_power(PowerSupplies=supplies)) == {"1": 200}


@pytest.mark.parametrize("status", [None, {"State": []}, {"State": {}}])
def test_enabled_supply_without_a_value_leaves_the_sum_unknown(status):
    supplies = [{"PowerInputWatts": 200}, {"PowerInputWatts": None, "Status": status}]
    assert node_watts(documents_with_power(PowerSupplies=supplies)) == {}


def test_power_subsystem_of_newer_services():
    supplies = f"{CHASSIS}/PowerSubsystem/PowerSupplies"
    documents = one_node(PowerSubsystem=link(f"{CHASSIS}/PowerSubsystem")) | {
        f"{CHASSIS}/PowerSubsystem": {"PowerSupplies": link(supplies)},
        supplies: collection(f"{supplies}/0", f"{supplies}/1"),
        f"{supplies}/0": {"Metrics": link(f"{supplies}/0/Metrics")},
        f"{supplies}/1": {"Metrics": link(f"{supplies}/1/Metrics")},
        f"{supplies}/0/Metrics": {"InputPowerWatts": {"Reading": 180.5}},
        f"{supplies}/1/Metrics": {"InputPowerWatts": {"Reading": 175}},
    }
    assert node_watts(documents) == {"1": 355.5}


def enclosure_documents():
    """Two nodes in one enclosure, which reports the power of both."""
    documents = {
        ROOT: {"Chassis": link("/redfish/v1/Chassis"), "Systems": link("/redfish/v1/Systems")},
        "/redfish/v1/Systems": collection("/redfish/v1/Systems/a", "/redfish/v1/Systems/b"),
        "/redfish/v1/Chassis": collection("/redfish/v1/Chassis/box", following="/redfish/v1/p2"),
        "/redfish/v1/p2": collection("/redfish/v1/Chassis/a", "/redfish/v1/Chassis/b"),
        "/redfish/v1/Chassis/box": {"Id": "box", "ChassisType": "Enclosure"},
    }
    for name, watts in (("a", 300), ("b", 400), ("box", 720)):
        path = f"/redfish/v1/Chassis/{name}"
        documents.setdefault(
            path,
            {"Id": name, "Links": {"ComputerSystems": [link(f"/redfish/v1/Systems/{name}")]}},
        )
        documents[path]["EnvironmentMetrics"] = link(f"{path}/EnvironmentMetrics")
        documents[f"{path}/EnvironmentMetrics"] = {"PowerWatts": {"Reading": watts}}
    return documents


def test_enclosure_power_is_not_that_of_the_node():
    assert node_watts(enclosure_documents(), system="b") == {"b": 400}


ENCLOSURE_LINKS = {
    "lists it as its content": {"Contains": [link("/redfish/v1/Chassis/b")]},
    "has more systems": {"ComputerSystems": [link(f"/redfish/v1/Systems/{x}") for x in "ab"]},
}


@pytest.mark.parametrize("links", ENCLOSURE_LINKS.values(), ids=ENCLOSURE_LINKS)
def test_enclosure_that_links_to_the_node_is_not_the_node(links):
    documents = enclosure_documents()
    for name in ("box", "b"):
        documents[f"/redfish/v1/Chassis/{name}"]["@odata.id"] = f"/redfish/v1/Chassis/{name}"
    box = documents["/redfish/v1/Chassis/box"]
    box |= {"ChassisType": "Other", "Links": {"ComputerSystems": [link("/redfish/v1/Systems/b")]}}
    box["Links"] |= links
    assert node_watts(documents, system="b") == {"b": 400}


def test_enclosure_is_known_by_its_type_and_by_what_it_contains():
    documents = enclosure_documents()
    node = documents["/redfish/v1/Chassis/b"]
    box = documents["/redfish/v1/Chassis/box"]
    box |= {"@odata.id": "/redfish/v1/Chassis/box", "Links": node["Links"]}
    assert node_watts(documents, system="b") == {"b": 400}
    box["ChassisType"] = "Other"
    node["Links"] = node["Links"] | {"ContainedBy": link("/redfish/v1/Chassis/box")}
    assert node_watts(documents, system="b") == {"b": 400}


def test_values_of_the_manufacturer_count_where_the_standard_ones_are_missing():
    consumption = {"ChassisPowerConsumption": {"CurrentPowerConsumptionW": 210}}
    fujitsu = {"Oem": {"ts_fujitsu": consumption}}
    assert node_watts(documents_with_power(**fujitsu)) == {"1": 210}
    assert node_watts(documents_with_power({"PowerConsumedWatts": 200}, **fujitsu)) == {"1": 200}
    assert node_watts(documents_with_power(PowerConsumedWatts=93)) == {"1": 93}
    assert node_watts(documents_with_power(Oem={"x": [], "y": "z"})) == {}


def test_system_must_be_configured_if_there_are_several():
    with pytest.raises(BmcError, match=r"computer systems .a, b.") as caught:
        node_watts(enclosure_documents())
    assert caught.value.reason == "ambiguous"
    with pytest.raises(BmcError, match="no computer system 'c'"):
        node_watts(enclosure_documents(), system="c")


def test_configured_chassis_are_read():
    assert node_watts(enclosure_documents(), chassis=("a", "box"), system="a") == {
        "box": 720,
        "a": 300,
    }


def test_links_to_other_hosts_are_not_followed():
    documents = one_node(EnvironmentMetrics=link("https://elsewhere.example/metrics"))
    assert node_watts(documents) == {}


def test_circular_pagination_ends():
    documents = enclosure_documents()
    documents["/redfish/v1/p2"]["Members@odata.nextLink"] = "/redfish/v1/p2"
    assert "a" in node_watts(documents, system="a")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["PowerControl", "PowerConsumedWatts", "PowerSupplies", "PowerInputWatts", "Status",
             "State", "RelatedItem", "@odata.id", "PowerWatts", "Reading", "Name"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip


READERS = (read_environment, partial(read_control, system=SYSTEM), read_inputs)


@given(st.sampled_from(READERS), st.dictionaries(
    st.sampled_from(["PowerWatts", "PowerControl", "PowerSupplies"]), json_values))  # fmt: skip
def test_arbitrary_document_is_watts_or_none(read, document):
    watts = read(lambda path: document, "/redfish/v1/x")
    assert watts is None or 0 < watts < float("inf")


def test_configured_chassis_is_read_without_access_to_the_systems():
    documents = documents_with_power({"PowerConsumedWatts": 344})
    documents[ROOT] = {**documents[ROOT], "Systems": link("/redfish/v1/Systems")}
    documents.pop("/redfish/v1/Systems", None)
    assert node_watts(documents, chassis=("1",)) == {"1": 344}
    with pytest.raises(BmcError):
        node_watts(documents)
