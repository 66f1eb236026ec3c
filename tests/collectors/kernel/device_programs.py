"""Device programs as Slurm, systemd and runc build them, instruction by instruction."""

from collectors.kernel import assembler as asm

READ, WRITE, MKNOD = 2, 4, 1
BLOCK, CHARACTER = 1, 2


def number(code, to, source=0, value=0):
    """An instruction with numbers of 32 bits."""
    return asm.Instruction(code, to, source, 0, value)


def head():
    """Type in 2, access in 3, major in 4, minor in 5: all three programs begin like that."""
    return [
        asm.load(2, 1, 0, 4), number(0x54, 2, value=0xFFFF),
        asm.load(3, 1, 0, 4), number(0x74, 3, value=16),
        asm.load(4, 1, 4, 4), asm.load(5, 1, 8, 4),
    ]  # fmt: skip


def slurm(rules):
    """src/plugins/cgroup/v2/ebpf.c: a rule for each device of a GRES, and the rest is allowed."""
    parts = head()
    for index, (major, minor, accept) in enumerate(rules):
        following = f"rule {index + 1}"
        parts += [asm.jump(following, 2, "!=", CHARACTER), asm.jump(following, 4, "!=", major)]
        parts += [asm.jump(following, 5, "!=", minor), *asm.leave(int(accept)), following]
    return asm.assemble([*parts, *asm.leave(1)])


def runc(rules):
    """libcontainer/devices/ebpf: compares the access as well; nothing else is allowed."""
    parts = head()
    for index, (major, minor, access) in enumerate(rules):
        following = f"rule {index + 1}"
        parts += [asm.jump(following, 2, "!=", CHARACTER)]
        parts += [number(0xBC, 1, 3), number(0x54, 1, value=access)]
        parts += [asm.jump_if_different(following, 1, 3)]
        parts += [asm.jump(following, 4, "!=", major)] if major is not None else []
        parts += [asm.jump(following, 5, "!=", minor)] if minor is not None else []
        parts += [number(0xB4, 0, value=1), asm.Instruction(asm.EXIT_CODE), following]
    return asm.assemble([*parts, number(0xB4, 0, value=0), asm.Instruction(asm.EXIT_CODE)])


def systemd(allowed, *, closed=True):
    """src/core/bpf-devices.c: an allowed device jumps to the end, where the result is 1."""
    if not closed:
        return asm.assemble(asm.leave(1))
    parts = head()
    for index, (major, minor) in enumerate(allowed):
        following = f"rule {index + 1}"
        parts += [asm.jump(following, 2, "!=", CHARACTER)]
        parts += [number(0xBC, 1, 3), number(0x54, 1, value=READ | WRITE)]
        parts += [asm.jump_if_different(following, 1, 3)]
        parts += [asm.jump(following, 4, "!=", major)]
        parts += [asm.jump(following, 5, "!=", minor)] if minor is not None else []
        parts += [asm.jump("allow"), following]
    return asm.assemble([*parts, *asm.leave(0), "allow", *asm.leave(1)])
