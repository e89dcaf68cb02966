#!/usr/bin/env bash
# Train da3po with verl on DAPO-Math-17K.
#
#   one node, 8 GPUs     HARDWON_DATA=/data recipes/verl/run.sh
#   four nodes           on the first:   ray start --head --port 6379
#                        on the others:  ray start --address FIRST:6379
#                        on the first:   HARDWON_DATA=/data NNODES=4 recipes/verl/run.sh
#   another model        recipes/verl/run.sh actor_rollout_ref.model.path=Qwen/Qwen3-8B-Base
#   a control            recipes/verl/run.sh algorithm.adv_estimator=da3po_symmetric
#
# Every node needs hardwon and verl installed, and the data, this folder and the checkpoints at the same
# paths. HARDWON_DATA is what prepare_data.py wrote. Arguments are verl's own overrides, key=value.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
nodes=${NNODES:-1}
python=${PYTHON:-python3}
export HARDWON_VERL_CONFIG=${HARDWON_VERL_CONFIG:-$here/da3po.yaml}
export VERL_USE_EXTERNAL_MODULES=hardwon.integrations.verl

for file in dapo-math-17k.parquet aime-2024.parquet; do
    if [[ ! -f ${HARDWON_DATA:?set HARDWON_DATA to the folder that prepare_data.py wrote}/$file ]]; then
        echo "error: $HARDWON_DATA/$file is missing; run $python $here/prepare_data.py $HARDWON_DATA" >&2
        exit 1
    fi
done
"$python" -m hardwon.integrations.verl --check

if ((nodes > 1)); then
    export RAY_ADDRESS=${RAY_ADDRESS:-auto}
    "$python" - "$nodes" <<'PYTHON'
import sys
import time

import ray

ray.init()
wanted = int(sys.argv[1])
for _ in range(60):
    nodes = sum(node["Alive"] for node in ray.nodes())
    if nodes >= wanted:
        sys.exit(print(f"Ray has {nodes} nodes"))
    time.sleep(5)
sys.exit(f"error: Ray has {nodes} of {wanted} nodes after five minutes; `ray start` the others first")
PYTHON
fi

exec "$python" -m verl.trainer.main_ppo --config-path "$here" --config-name da3po_dapo_math_17k \
    trainer.nnodes="$nodes" "$@"
