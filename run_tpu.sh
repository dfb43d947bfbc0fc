#!/usr/bin/env bash
# Makes a Cloud TPU slice and trains on all of its hosts.
#
#   TPU_NAME=my-pod ZONE=us-west4-a ./run_tpu.sh [--dry_run] COMMAND [ARGUMENTS]
#
#   create    asks for ACCELERATOR_TYPE (v5litepod-16) with RUNTIME_VERSION
#             (v2-alpha-tpuv5-lite), SPOT=1 for a cheaper one that may be taken
#             away, and waits until it is there
#   install   what the clone has committed, on every host
#   train     `dualenc train --multihost ARGUMENTS` on every host, which goes on
#             when this machine does not; all hosts must see the --model_dir
#   logs      what it prints, of host WORKER (0)
#   resume    after preemption: a new slice, install, and train ARGUMENTS, the
#             same as before, which goes on from the newest checkpoint
#   stop      ends the step and saves, on every host; the slice stays
#   delete    the slice, which costs until then
#
# --dry_run prints the commands. PROJECT is optional.
set -euo pipefail

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
  exit 2
}

run() {
  if [ "$dry_run" ]; then printf '%q ' "$@" && echo; else "$@"; fi
}

dry_run=
[ "${1:-}" != --dry_run ] || { dry_run=1; shift; }
command=${1:-}
case $command in
  create | install | train | logs | resume | stop | delete) shift ;;
  *) usage ;;
esac
: "${TPU_NAME:?set TPU_NAME to the name of the TPU VM}"
: "${ZONE:?set ZONE to its zone}"
here=$(cd "$(dirname "$0")" && pwd)
place=(--zone "$ZONE")
[ -z "${PROJECT:-}" ] || place+=(--project "$PROJECT")
queued=(gcloud compute tpus queued-resources)

on_hosts() { # WORKER COMMAND
  run gcloud compute tpus tpu-vm ssh "$TPU_NAME" "${place[@]}" --worker="$1" \
    --command "$2"
}

create() {
  run "${queued[@]}" create "$TPU_NAME" --node-id "$TPU_NAME" "${place[@]}" \
    --accelerator-type "${ACCELERATOR_TYPE:-v5litepod-16}" \
    --runtime-version "${RUNTIME_VERSION:-v2-alpha-tpuv5-lite}" \
    ${SPOT:+--spot}
  local state=
  until [[ $state == *ACTIVE* ]]; do
    state=$(run "${queued[@]}" describe "$TPU_NAME" "${place[@]}" \
      --format 'value(state.state)')
    [ -z "$dry_run" ] || { echo "$state"; return; }
    case $state in
      *FAILED* | *SUSPEND*)
        echo "The queued resource $TPU_NAME is $state; see" \
          "gcloud compute tpus queued-resources describe $TPU_NAME" >&2
        exit 1 ;;
      *ACTIVE*) ;;
      *) sleep "${POLL_SECONDS:-30}" ;;
    esac
  done
}

install() {
  local archive
  archive=$(mktemp -t dualenc_jax.XXXXXX.tar.gz)
  run git -C "$here" archive --format=tar.gz -o "$archive" HEAD
  run gcloud compute tpus tpu-vm scp "$archive" \
    "$TPU_NAME:dualenc_jax.tar.gz" "${place[@]}" --worker=all
  rm -f "$archive"
  on_hosts all 'set -e
    mkdir -p dualenc_jax && tar -xzf dualenc_jax.tar.gz -C dualenc_jax
    cd dualenc_jax
    [ -d .venv ] || python3 -m venv .venv
    .venv/bin/pip install -q -e ".[data,tpu]"'
}

train() {
  on_hosts all "cd dualenc_jax
    nohup setsid .venv/bin/dualenc train --multihost $(printf '%q ' "$@") \
    > train.log 2>&1 < /dev/null &
    echo \$! > train.pid"
}

logs() {
  on_hosts "${WORKER:-0}" 'tail -n 100 -F dualenc_jax/train.log'
}

stop() {
  on_hosts all 'pid=$(cat dualenc_jax/train.pid)
    kill -TERM $pid 2> /dev/null
    while kill -0 $pid 2> /dev/null; do sleep 1; done'
}

delete() {
  run "${queued[@]}" delete "$TPU_NAME" "${place[@]}" --force --quiet
}

resume() {
  delete
  create
  install
  train "$@"
}

"$command" "$@"
