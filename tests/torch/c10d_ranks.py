"""Ranks as forked processes, for tests of torch.distributed over duet."""
import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

FORK = multiprocessing.get_context("fork")


def _rank(body, pipe, path, rank, size, backend, options, seconds):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=size, pg_options=options,
                                timeout=timedelta(seconds=seconds))
        outcome = body(rank, size)
        dist.destroy_process_group()
    except Exception:  # pylint: disable=broad-except
        outcome = RuntimeError(traceback.format_exc())
    pipe.send(outcome)
    pipe.close()
    os._exit(0)  # what is left of a group that has failed ends with the process


def ranks(size, body, backend="duet", transport="auto", seconds=120, killed=()):
    """What body(rank, size) returns on each rank; None of a rank that is killed."""
    options = None
    if backend == "duet":
        import duet_torch  # pylint: disable=import-outside-toplevel; registers the backend, which not every build has
        options = duet_torch.Options(backend=transport)
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank in range(size):
            here, there = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_rank, daemon=True, args=(
                body, there, os.path.join(folder, "store"), rank, size, backend, options, seconds))
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        outcomes = []
        for rank, pipe in enumerate(pipes):
            try:
                outcomes.append(pipe.recv())
            except EOFError:
                outcomes.append(None if rank in killed else RuntimeError("the process has ended"))
        for process in processes:
            process.join()
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, Exception):
            raise AssertionError(f"rank {rank}: {outcome}")
    return outcomes
