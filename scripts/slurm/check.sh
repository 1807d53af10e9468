#!/bin/bash
# Tries in about ten minutes, on one node, what the jobs of a table need. Run it before you submit them:
#
#   srun --nodes=1 --gpus=3 --cpus-per-task=24 --time=0:30:00 scripts/slurm/check.sh Qwen/Qwen3-0.6B
#   DRY=cpu scripts/slurm/check.sh     # two processes without a GPU, on the shipped policy, and no server
#
# It says PASS or FAIL of each of these, and exits with 1 after a FAIL:
#   checks   the model, the folders and the environment (check=true)
#   sharded  two processes train with sharded weights (trainer=fsdp)
#   resumed  the same run is killed after its first checkpoint, resumes, and ends with every iteration once
#   served   a vLLM server on the third GPU loads the adapter of each iteration and samples from it
# Variables: PYTHON (.venv/bin/python), VLLM (.venv-vllm/bin/vllm), OUT (outputs/cluster-check)
set -uo pipefail

python=${PYTHON:-.venv/bin/python}
vllm=${VLLM:-.venv-vllm/bin/vllm}
out=${OUT:-outputs/cluster-check}
port=8130
model=${1:-Qwen/Qwen3-0.6B}
run=("policy.model=$model" trainer=fsdp)
if [ "${DRY:-}" = cpu ]; then run=(trainer=fsdp trainer.accelerator=cpu trainer.precision=32-true engine.copy=true); fi
run+=(method=pivotrl states=expert_turns trainer.devices=2 rollout.states=4 rollout.trajectories=null allocator.group_size=4 data.trajectories=16)
run+=(rollout.sampling.max_tokens=32 eval.tasks=4 eval.attempts=0 eval.items=0 update.allow_empty=true)
failed=0
mkdir -p "$out"

try() { # name, then what is tried; its output goes into a file
  local name=$1 began=$SECONDS
  shift
  if "$@" > "$out/$name.log" 2>&1; then
    echo "PASS $name ($((SECONDS - began)) s)"
  else
    echo "FAIL $name ($((SECONDS - began)) s): $out/$name.log"
    failed=1
  fi
}

train() { "$python" train.py "${run[@]}" "$@"; }

resumed() {
  local folder=$out/resumed/seed0 pid
  setsid "$python" train.py "${run[@]}" iterations=4 fresh=true "name=resumed" "paths.out=$folder" &
  pid=$!
  until [ -e "$folder/checkpoints/last.ckpt" ]; do
    kill -0 "$pid" 2> /dev/null || return 1
    sleep 0.2
  done
  kill -9 -- "-$pid"
  wait "$pid"
  train iterations=4 name=resumed "paths.out=$folder" || return 1
  [ "$(grep -c '"phase": "train"' "$folder/metrics.jsonl")" = 4 ]
}

served() {
  local server status
  CUDA_VISIBLE_DEVICES=2 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 "$vllm" serve "$model" --port $port --dtype bfloat16 --max-model-len 8192 \
    --logprobs-mode processed_logprobs --generation-config vllm --enable-lora --max-lora-rank 32 --max-loras 4 --max-cpu-loras 8 &
  server=$!
  train iterations=2 engine=vllm "engine.url=http://127.0.0.1:$port" fresh=true name=served "paths.out=$out/served/seed0"
  status=$?
  kill "$server"
  return $status
}

try checks train check=true name=checks "paths.out=$out/checks/seed0"
try sharded train iterations=2 fresh=true name=sharded "paths.out=$out/sharded/seed0"
try resumed resumed
if [ "${DRY:-}" != cpu ]; then try served served; fi
exit $failed
