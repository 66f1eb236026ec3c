#!/bin/bash
# How does Slurm record a job whose output file cannot be opened?
#
# Guess, written before the run: FAILED, with an exit code of its own and a reason that names the launch.
#
# Seen: FAILED with ExitCode 0:53, which everywhere else says that signal 53 ended the script; there was no script yet,
# and no signal. Its batch step is CANCELLED, 0:53 as well. `scontrol show job` has the reason JobLaunchFailure as long
# as slurmctld knows the job; accounting has the reason None. A working directory that does not exist is no failure:
# the script runs in /tmp.
#
# Slurm 22.05.8 (Debian 12: slurm-wlm 22.05.8-4+deb12u3), slurmdbd with MariaDB 10.11.
#
# Runs as root on Debian 12: slurmdbd, slurmctld and one slurmd from packages that are unpacked into a
# temporary folder, on loopback. Ends with 0 while the behaviour is as seen, with 1 when it has changed.
set -euo pipefail

slurm=22.05.8-4+deb12u3
packages=(slurmctld=$slurm slurmd=$slurm slurmdbd=$slurm slurm-client=$slurm slurm-wlm-basic-plugins=$slurm
    slurm-wlm-mysql-plugin=$slurm)
unpinned=(mariadb-server-core mariadb-client-core mariadb-common libmariadb3 libhwloc15 libmunge2 libhttp-parser2.9
    libjson-c5 libjwt0 libyaml-0-2 liburing2 libsnappy1v5 libfreeipmi17 libipmimonitoring6 librrd8 libpmix2
    liblua5.3-0 librdkafka1 libjansson4 libnuma1 libdbus-1-3 libxnvctrl0 libncurses6 libevent-core-2.1-7
    libevent-pthreads-2.1-7)

top=$(mktemp -d /tmp/finding.XXXXXX)
started=()
stop() {
    for ((i = ${#started[@]} - 1; i >= 0; i--)); do
        kill "${started[i]}" 2>/dev/null && wait "${started[i]}" 2>/dev/null || true
    done
    rm -rf "$top"
}
trap stop EXIT
cd "$top"
mkdir debs root etc state spool log mysql run

apt-get -q update >/dev/null 2>&1 || true
(cd debs && apt-get -q download "${packages[@]}" >/dev/null 2>&1
 for package in "${unpinned[@]}"; do apt-get -q download "$package" >/dev/null 2>&1 || true; done)
for deb in debs/*.deb; do dpkg-deb -x "$deb" root; done
export PATH=$top/root/usr/sbin:$top/root/usr/bin:$PATH
export LD_LIBRARY_PATH=$top/root/usr/lib/x86_64-linux-gnu:$top/root/usr/lib/x86_64-linux-gnu/slurm-wlm
export SLURM_CONF=$top/etc/slurm.conf SLURM_TIME_FORMAT=%s
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
ctld=$(port) dbd=$(port) node=$(port) sql=$(port)
host=$(uname -n)

cat >etc/slurm.conf <<EOF
ClusterName=finding
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$ctld
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$dbd
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
PluginDir=$top/root/usr/lib/x86_64-linux-gnu/slurm-wlm
StateSaveLocation=$top/state
SlurmdSpoolDir=$top/spool
SlurmctldPidFile=$top/run/slurmctld.pid
SlurmdPidFile=$top/run/slurmd.pid
SlurmctldLogFile=$top/log/slurmctld
SlurmdLogFile=$top/log/slurmd
ReturnToService=2
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$node CPUs=1 RealMemory=100
PartitionName=all Nodes=n1 Default=YES MaxTime=10
EOF
cat >etc/slurmdbd.conf <<EOF
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$dbd
SlurmUser=root
AuthType=auth/none
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$sql
StorageUser=root
StorageLoc=slurm
PidFile=$top/run/slurmdbd.pid
LogFile=$top/log/slurmdbd
PluginDir=$top/root/usr/lib/x86_64-linux-gnu/slurm-wlm
EOF
chmod 600 etc/slurmdbd.conf

start() { "$@" >>log/started 2>&1 & started+=($!); }
within() { # seconds, command...
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within the time: $*" >&2; tail -n 5 log/* >&2; exit 2; }
        sleep 0.3
    done
}

# An empty database whose server asks for no password and listens on loopback alone.
sql_options="--no-defaults --datadir=$top/mysql --user=root --lc-messages-dir=$top/root/usr/share/mysql"
sql_options+=" --skip-grant-tables --bind-address=127.0.0.1 --port=$sql --socket=$top/run/sql --pid-file=$top/run/sql.pid"
mkdir mysql/mysql
echo 'create database if not exists slurm' >etc/init.sql
start mariadbd $sql_options --plugin-dir=$top/root/usr/lib/mysql/plugin --innodb-buffer-pool-size=64M --init-file=$top/etc/init.sql
within 60 test -S run/sql
start slurmdbd -D
within 60 sacctmgr -n show cluster
sacctmgr -iQ add cluster finding >/dev/null 2>&1 || true
start slurmctld -D -i
within 60 scontrol ping
start slurmd -D -N n1
within 60 sh -c "sinfo -h -o %T | grep -q idle"


printf '#!/bin/bash\nexit 0\n' >job.sh
ended() { sacct -n -X -j "$1" -o State | grep -Eq 'COMPLETED|FAILED|CANCELLED|NODE_FAIL'; }
record() { # name, options of sbatch...
    local name=$1 job; shift
    job=$(sbatch --parsable "$@" job.sh)
    within 120 ended "$job"
    echo "$name: $(sacct -nXP -j "$job" -o State,ExitCode,Reason)," \
        "batch step $(sacct -nP -j "$job.batch" -o State,ExitCode)," \
        "slurmctld $(scontrol show job "$job" | grep -o ' Reason=[^ ]*')"
}
echo "version: $(sacct --version)"
{
    record "output in a folder that exists" --output=/dev/null
    record "output in a folder that does not exist" --output="$top/nowhere/out"
    record "working directory that does not exist" --output=/dev/null --chdir="$top/nowhere"
} >seen
cat >expected <<'EOF'
output in a folder that exists: COMPLETED|0:0|None, batch step COMPLETED|0:0, slurmctld  Reason=None
output in a folder that does not exist: FAILED|0:53|None, batch step CANCELLED|0:53, slurmctld  Reason=JobLaunchFailure
working directory that does not exist: COMPLETED|0:0|None, batch step COMPLETED|0:0, slurmctld  Reason=None
EOF
cat seen
diff expected seen
