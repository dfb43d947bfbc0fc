#!/usr/bin/env bash
# Trains on every host of a Cloud TPU pod slice; arguments are those of
# `dualenc train`.
#
#   TPU_NAME=my-pod ZONE=us-central2-b ./run_tpu.sh \
#     --gin_file=runs/finetune.gin --model_dir=/mnt/shared/my_model ...
#
# What the clone has committed is copied to each host and installed there once;
# commit your own gin files first. --multihost joins the hosts, which all must
# see the model_dir. PROJECT is optional.
set -euo pipefail

: "${TPU_NAME:?set TPU_NAME to the name of the TPU VM}"
: "${ZONE:?set ZONE to its zone}"
here=$(cd "$(dirname "$0")" && pwd)
flags=(--zone "$ZONE" --worker=all)
[ -z "${PROJECT:-}" ] || flags+=(--project "$PROJECT")

archive=$(mktemp -t dualenc_jax.XXXXXX.tar.gz)
trap 'rm -f "$archive"' EXIT
git -C "$here" archive --format=tar.gz -o "$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$TPU_NAME:dualenc_jax.tar.gz" \
  "${flags[@]}"

arguments=$(printf '%q ' "$@")
gcloud compute tpus tpu-vm ssh "$TPU_NAME" "${flags[@]}" --command "
  set -e
  mkdir -p dualenc_jax && tar -xzf dualenc_jax.tar.gz -C dualenc_jax
  cd dualenc_jax
  [ -d .venv ] || python3 -m venv .venv
  .venv/bin/pip install -q -e '.[data,tpu]'
  .venv/bin/dualenc train --multihost $arguments
"
