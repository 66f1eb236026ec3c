"""The devices of a job, from the programs that its cgroup has; anything odd is "unknown"."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.kernel import assembler as asm
from collectors.kernel.devices import Verdict, allotted, evaluate
from tests.collectors.kernel.device_programs import READ, WRITE, runc, slurm, systemd

GPUS = [(195, minor) for minor in range(4)]
DEVICE = st.tuples(st.integers(0, 2**20), st.integers(0, 2**20))


@given(st.dictionaries(DEVICE, st.booleans(), max_size=20), DEVICE)
def test_slurm_allows_what_its_rules_say_and_all_else(rules, other):
    code = slurm([(*device, accept) for device, accept in rules.items()])
    for device, accept in rules.items():
        assert evaluate(code, device) == Verdict(accept, named=True)
    if other not in rules:
        verdict = evaluate(code, other)
        assert verdict is not None
        assert verdict.allowed


@given(st.sets(DEVICE, max_size=20), DEVICE)
def test_runc_and_systemd_allow_only_what_they_name(allowed, other):
    for code in (runc([(*each, READ | WRITE) for each in allowed]), systemd(allowed)):
        for device in allowed:
            assert evaluate(code, device) == Verdict(allowed=True, named=True)
        if other not in allowed:
            verdict = evaluate(code, other)
            assert verdict is not None
            assert not verdict.allowed


def test_a_device_that_may_only_be_read_is_not_allotted():
    code = runc([(195, 0, READ), (195, 1, READ | WRITE)])
    assert allotted([code], [code], GPUS) == [(195, 1)]


def test_a_job_has_the_gpus_that_slurm_accepts_for_it():
    code = slurm([(195, 0, False), (195, 1, True), (195, 2, False), (195, 3, True)])
    assert allotted([code], [code], GPUS) == [(195, 1), (195, 3)]


def test_a_job_without_gpus_has_none_and_one_with_all_has_all():
    none, every = (slurm([(*gpu, accept) for gpu in GPUS]) for accept in (False, True))
    assert allotted([none], [none], GPUS) == []
    assert allotted([every], [every], GPUS) == GPUS


@pytest.mark.parametrize(
    "code",
    [slurm([]), systemd([], closed=False), runc([(195, None, 7)]), runc([(None, None, 7)])],
    ids=["no rules", "open", "all of a major", "privileged container"],
)
def test_a_program_that_treats_all_gpus_alike_allots_none(code):
    assert allotted([code], [code], GPUS) is None


def test_a_parents_program_can_only_take_away():
    job = slurm([(*gpu, True) for gpu in GPUS])
    service = systemd([(195, 0), (195, 2)])
    assert allotted([job], [job, service], GPUS) == [(195, 0), (195, 2)]
    assert allotted([systemd([], closed=False)], [service], GPUS) is None  # none of its own


@given(st.binary(max_size=400))
def test_any_bytes_have_an_answer(code):
    assert evaluate(code, (195, 0)) in (
        None, *(Verdict(allowed, named) for allowed in (False, True) for named in (False, True))
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(-9, 9),
                          st.integers(-9, 9)), max_size=30))  # fmt: skip
def test_any_instructions_have_an_answer(instructions):
    evaluate(b"".join(struct.pack("<BBhi", *each) for each in instructions), (195, 0))


UNKNOWN = {
    "a call": [asm.call(14), *asm.leave(1)],
    "a map": [*asm.map_descriptor(1, 5), *asm.leave(1)],
    "the stack": [asm.store_zero(asm.STACK, -8), *asm.leave(1)],
    "an unset register": [asm.jump("end", 7, "==", 0), "end", *asm.leave(1)],
    "another result": asm.leave(2),
    "no result": [asm.Instruction(asm.EXIT_CODE)],
    "no end": [asm.constant(0, 1)],
    "an endless loop": ["again", asm.jump("again")],
    "outside the context": [asm.load(2, 1, 12, 4), *asm.leave(1)],
    "a pointer": [asm.load(2, 1, 8), asm.load(3, 2, 0), *asm.leave(1)],
    "a signed comparison": [asm.load(2, 1, 8, 4), asm.Instruction(0x65, 2), *asm.leave(1)],
    "a swap of bytes": [asm.load(2, 1, 8, 4), asm.Instruction(0xDC, 2, 0, 0, 32), *asm.leave(1)],
}


@pytest.mark.parametrize("parts", UNKNOWN.values(), ids=UNKNOWN)
def test_what_no_device_manager_writes_is_unknown(parts):
    code = asm.assemble(parts)
    assert evaluate(code, (195, 0)) is None
    assert allotted([code], [code], GPUS) is None
