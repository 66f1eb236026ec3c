#!/bin/bash
# Which state does PSI/J give to a PBS job that its owner deleted with qdel?
#
# Guess, written before the run: CANCELED, and FAILED for a job that was killed without being deleted.
#
# Seen: the other way round. OpenPBS sends SIGTERM to a deleted job and records Exit_status 271 (256 + 15), as a real
# OpenPBS 23.06.06 did. PSI/J knows 265 (256 + 9, SIGKILL) alone as CANCELED. So a deleted job is FAILED, and a job
# whose processes somebody killed with SIGKILL, or that ignored SIGTERM until PBS killed it, is CANCELED. A job that was
# killed at its walltime (-29) is FAILED.
#
# psij-python 0.9.11; Exit_status as in the PBS Professional Administrator's Guide, "Job Exit Status Codes".
#
# Needs python3 and a package index. Ends with 0 while the behaviour is as seen, with 1 when it has changed.
set -euo pipefail

top=$(mktemp -d /tmp/finding.XXXXXX)
trap 'rm -rf "$top"' EXIT
cd "$top"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check psij-python==0.9.11 2>/dev/null
export HOME=$top

venv/bin/python - <<'EOF' >seen
import json

from psij import JobExecutor

# What `qstat -f -F json -x` prints for ended jobs, less the attributes that PSI/J does not read.
ends = {"returned 0": 0, "returned 1": 1, "deleted by qdel": 271, "killed by SIGKILL": 265, "past its walltime": -29}
answer = {"pbs_version": "23.06.06", "Jobs": {
    f"{number}.pbs": {"Job_Name": name, "job_state": "F", "Exit_status": status}
    for number, (name, status) in enumerate(ends.items())
}}
states = JobExecutor.get_instance("pbs").parse_status_output(0, json.dumps(answer))
for number, name in enumerate(ends):
    print(f"{name}: {states[f'{number}.pbs'].state.name}")
EOF

cat >expected <<'EOF'
returned 0: COMPLETED
returned 1: FAILED
deleted by qdel: FAILED
killed by SIGKILL: CANCELED
past its walltime: FAILED
EOF
cat seen
diff expected seen
