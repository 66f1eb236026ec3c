"""The test modules that start jobs in the cgroups of this machine.

They run one after the other, because an exporter of one would see the jobs of another. `.ci/run`
runs the other end-to-end tests beside them.
"""

MODULES = {
    "test_containers",
    "test_first_command",
    "test_kernel_helper",
    "test_packages",
    "test_release",
    "test_short_jobs",
    "test_up",
    "test_up_killed",
    "test_walks",
}


def uses_cgroups_of_machine(module: str) -> bool:
    """Whether the tests of a module start jobs on this machine, and not in an emulated one."""
    if module.endswith(("uml", "emulated")):
        return False
    return module in MODULES or "guide_" in module or "slurm" in module
