#!/bin/sh
# Prints the headers that are installed: all but those of the backends' insides and of loadable modules.
cd "$(dirname "$0")/.." || exit 1
find lib samplers dp ddp -name '*.h' ! -path 'lib/backend/cpu/*' ! -path 'lib/backend/cuda/*' ! -path 'ddp/gloo/*' ! -name asio.h ! -name tcp_store_server.h ! -path 'ddp/nccl/*' | sort
