#!/bin/bash
# A build on a Slurm allocation: Ray on every node, the driver on the first one.
#
#   sbatch slurm.sh /shared/corpus /shared/corpus.sift llama-3.1-8b [more options of the build]
#
# Submitting the same line again resumes. At the time limit the build ends cleanly and the job
# queues itself again; when it is preempted, or its first node dies, Slurm does that.
#SBATCH --job-name=sift-build
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
# Five minutes before the limit, to this script alone.
#SBATCH --signal=B:USR1@300
set -euo pipefail
# With job control a background command keeps its own signals and process group.
set -m

if (($# < 3)); then
    echo "usage: sbatch slurm.sh CORPUS INDEX MODEL [options of sift-index build]" >&2
    exit 2
fi
corpus=$1 index=$2 model=$3
shift 3
# Put here what every node needs, such as: source /shared/venv/bin/activate

port=${SIFT_RAY_PORT:-6379}
gpus=${SLURM_GPUS_ON_NODE:-0}
cpus=${SLURM_CPUS_PER_TASK:-$(nproc)}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
# One that the other nodes can reach; a name works where all of them resolve it.
address=${SIFT_HEAD_IP:-$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address)}
address=${address%% *}
export RAY_ADDRESS=$address:$port
# A secret of this job, the same on all of its nodes: other users share the network (Ray from 2.52).
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
export RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}

build=
requeue=no
# The driver stops its workers, writes its state and ends with 143; committed units are kept.
stop() {
    requeue=$1
    if [[ -n $build ]]; then kill -TERM "$build" 2>/dev/null || true; else exit 143; fi
}
clean_up() {
    local left
    mapfile -t left < <(jobs -p)
    for group in "${left[@]}"; do kill -TERM -- "-$group" 2>/dev/null || true; done
}
trap 'stop yes' USR1
trap 'stop no' TERM INT
trap clean_up EXIT

step=(--nodes=1 --ntasks=1 --cpus-per-task="$cpus" --overlap)
common=(--num-cpus="$cpus" --num-gpus="$gpus" --disable-usage-stats --block)
srun "${step[@]}" --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false \
    "${common[@]}" &
for ((second = 0; ; second++)); do
    ray health-check --address "$RAY_ADDRESS" >/dev/null 2>&1 && break
    if ((second >= ${SIFT_HEAD_SECONDS:-300})); then
        echo "expected Ray at $RAY_ADDRESS on $head, found nothing; see the output above" >&2
        exit 1
    fi
    sleep 1
done
# Workers are taken as they come; a node that dies takes only its own units along.
for node in "${nodes[@]:1}"; do
    srun "${step[@]}" --nodelist="$node" \
        ray start --address="$RAY_ADDRESS" "${common[@]}" &
done

sift-index build "$corpus" --model "$model" --index "$index" --address auto "$@" &
build=$!
code=0
# A signal ends the wait, not the build; a last one asks for what the build ended with.
while kill -0 "$build" 2>/dev/null; do wait "$build" || true; done
wait "$build" || code=$?

if [[ $requeue == yes && $code == 143 ]]; then
    echo "out of time: committed units are kept, the job goes on when it is scheduled again"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
