#!/usr/bin/env bash
# A SLURM of one node for the tests: controller, node daemon and munge as plain processes of this machine, below one
# folder ($SLURM_TEST_DIR, with short paths), on ports of their own. Debian packages; root. `. $SLURM_TEST_DIR/env.sh`
# afterwards; stop it with down.sh. Started again, it starts only what is not running.
set -euo pipefail
dir=${SLURM_TEST_DIR:?set SLURM_TEST_DIR to a folder}
cpus=${SLURM_TEST_CPUS:-4}
export DEBIAN_FRONTEND=noninteractive
[ "$(id -u)" = 0 ] || { echo "up.sh: only root can start slurmd and munged" >&2; exit 1; }

missing=()
for pair in slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  wait=(-o DPkg::Lock::Timeout=120)   # another installation may be going on
  apt-get "${wait[@]}" update -qq
  apt-get "${wait[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

node=$(hostname -s); node=${node%%.*}
getent hosts "$node" >/dev/null || echo "127.0.0.1 $node" >>/etc/hosts   # the daemons look each other up by this name
mkdir -p "$dir"/{bin,state,spool,keys,run,log}
chmod 755 "$dir" "$dir/run"; chmod 700 "$dir/keys"

running() { [ -s "$dir/run/$1.pid" ] && [ "$(cat "/proc/$(cat "$dir/run/$1.pid")/comm" 2>/dev/null)" = "$1" ]; }

if ! running munged; then
  [ -s "$dir/keys/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$dir/keys/munge.key")
  rm -f "$dir/run/munge.sock" "$dir/run/munge.sock.lock"
  # --force: the folder lies below one that others can write to, which munged refuses otherwise
  munged --force --key-file="$dir/keys/munge.key" --socket="$dir/run/munge.sock" --pid-file="$dir/run/munged.pid" \
    --seed-file="$dir/keys/seed" --log-file="$dir/keys/munged.log"
fi

cat >"$dir/slurm.conf" <<CONF
ClusterName=fewnlutest
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# credentials that expire soon: a requeued job may only start again after that
AuthInfo=socket=$dir/run/munge.sock,cred_expire=5
SlurmctldPort=${SLURM_TEST_PORT:-17817}
SlurmdPort=$((${SLURM_TEST_PORT:-17817} + 1))
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
# no cgroups and no accounting daemon in a container
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# take the number of cores below for true
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
# a job in partition urgent requeues one in main, after submitit's signal and a grace time
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=3
MinJobAge=3600
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=5
PartitionName=urgent Nodes=$node Default=NO MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
CONF
# From SLURM 23 on, slurmd loads a cgroup plugin whatever ProctrackType says, unless it is switched off.
[ "$(slurmd -V | sed 's/[^0-9]*\([0-9]*\).*/\1/')" -lt 23 ] || echo "CgroupPlugin=disabled" >"$dir/cgroup.conf"

# submitit asks sacct, which needs an accounting daemon: a stand-in answers from the controller.
cat >"$dir/bin/sacct" <<'SACCT'
#!/usr/bin/env python3
import re, subprocess, sys
argv = sys.argv[1:]
ids = [argv[i + 1] for i, a in enumerate(argv[:-1]) if a == "-j"]
print("JobID|State|NodeList")
for job in ",".join(ids).split(","):
    text = subprocess.run(["scontrol", "-o", "show", "job", job], capture_output=True, text=True).stdout
    for line in text.splitlines():
        got = dict(re.findall(r"(\w+)=(\S*)", line))
        name = got.get("JobId", "")
        if "ArrayJobId" in got:
            task = got.get("ArrayTaskId", "")
            name = f"{got['ArrayJobId']}_{task if task.isdigit() else '[' + task + ']'}"
        if name:
            print(f"{name}|{got['JobState']}|{got.get('NodeList', '').replace('(null)', 'None assigned')}")
SACCT
chmod +x "$dir/bin/sacct"
printf 'export SLURM_CONF=%q\nexport PATH=%q:"$PATH"\n' "$dir/slurm.conf" "$dir/bin" >"$dir/env.sh"

export SLURM_CONF=$dir/slurm.conf
running slurmctld || slurmctld -f "$SLURM_CONF"
running slurmd || slurmd -f "$SLURM_CONF" -N "$node"
for _ in $(seq 120); do
  state=$(timeout 5 sinfo -h -p main -o %t 2>/dev/null || true)
  case $state in
    idle | mix | alloc) exit 0 ;;
    down* | drain*) timeout 5 scontrol update NodeName="$node" State=RESUME 2>/dev/null || true ;;
  esac
  sleep 0.25
done
echo "up.sh: the node is '${state:-silent}' after 30 s" >&2
tail -n 20 "$dir"/log/*.log >&2
exit 1
