#!/usr/bin/env bash
# Stop what up.sh started, by the process ids that it left, and nothing else.
set -uo pipefail
dir=${SLURM_TEST_DIR:?set SLURM_TEST_DIR to the folder given to up.sh}
export SLURM_CONF=$dir/slurm.conf
if [ -s "$SLURM_CONF" ]; then   # jobs first: their steps would outlive slurmd
  for job in $(timeout 5 squeue -h -o %A 2>/dev/null | sort -u); do timeout 5 scancel "$job"; done
  for _ in $(seq 40); do [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break; sleep 0.25; done
fi
for name in slurmd slurmctld munged; do
  file=$dir/run/$name.pid
  [ -s "$file" ] || continue
  pid=$(cat "$file")
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$name" ] || continue
  kill "$pid"
  for _ in $(seq 50); do [ -d "/proc/$pid" ] || break; sleep 0.1; done
  [ ! -d "/proc/$pid" ] || kill -9 "$pid"
done
