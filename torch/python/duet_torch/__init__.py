"""duet for PyTorch: a backend of torch.distributed for tensors in the host's memory, and a comparison of DP and DDP.

    import torch.distributed as dist
    import duet_torch
    dist.init_process_group("duet")

Options go as pg_options=duet_torch.Options(backend="tcp"), or in the variable DUET_BACKEND.

    duet_torch.compare(network, torch.zeros(32, 3, 64, 64))   # which mode trains it fastest here?
"""
import dataclasses
import os

import torch.distributed as dist

from ._compare import Comparison, compare
from ._extension import import_extension

_c10d = import_extension()
__all__ = ["Comparison", "Options", "compare"]


@dataclasses.dataclass
class Options:
    """backend: "auto" (shm where all ranks are on one host and can share memory, else tcp), "shm", "tcp", "gloo"."""

    backend: str = dataclasses.field(default_factory=lambda: os.environ.get("DUET_BACKEND", "auto"))


def _make_backend(group, options):
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"pg_options of the backend duet are duet_torch.Options, got {type(options).__name__}")
    # All ranks of the job give the default group no list of ranks.
    subgroup = group.group_id if group.global_ranks_in_group else ""
    return _c10d.make_backend(group.store, group.group_rank, group.group_size, group.timeout, options.backend, subgroup)


dist.Backend.register_backend("duet", _make_backend, extended_api=True, devices=["cpu"])
