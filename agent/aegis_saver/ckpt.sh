#!/bin/sh
# The saver's service for one folder of checkpoints, kept by the agent: ckpt.sh FOLDER
# Megatron-LM is put on the path where it is, for its checkpoint formats.
for megatron in ${MEGATRON_PATH:-} /opt/Megatron-LM /workspace/Megatron-LM; do
  if [ -d "$megatron/megatron" ]; then
    PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$megatron"
    export PYTHONPATH
    break
  fi
done
exec "${AEGIS_SAVER_PYTHON:-python3}" -m aegis_saver "$1"
