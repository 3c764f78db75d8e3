"""Every communication hook and averager of torch.distributed.algorithms over duet, against Gloo."""
import inspect
import unittest
import warnings
from collections import OrderedDict
from functools import partial

import torch
import torch._dynamo  # noqa: F401, once here instead of in every rank, where DDP needs it
import torch.distributed as dist
from c10d_ranks import ranks
from torch import nn
from torch.distributed.algorithms._comm_hooks import default_hooks as sharded
from torch.distributed.algorithms._optimizer_overlap.optimizer_overlap import _as_overlapped_optim
from torch.distributed.algorithms.ddp_comm_hooks import (ddp_zero_hook, debugging_hooks, default_hooks,
                                                         mixed_precision_hooks, optimizer_overlap_hooks,
                                                         post_localSGD_hook, powerSGD_hook, quantization_hooks)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 8
# Hooks that are not in HOOKS, and why.
ELSEWHERE = {
    "batched_powerSGD_hook": "an assertion of its own fails with any backend",
    "_apply_optim_in_backward_hook": "its torch.Stream() needs an accelerator",
    "_reducer_allreduce_and_upcast_hook": "DDP's mixed precision has a stream of an accelerator",
    "fp16_compress_wrapper": "in HOOKS, around another hook", "bf16_compress_wrapper": "in HOOKS, around another hook",
    "_hook_then_optimizer": "in HOOKS as 'overlapped optimizer'",
}
# Whose results are each rank's own.
OF_EACH_RANK = ("noop_hook", "post_localSGD_hook", "hooks of FSDP", "PeriodicModelAverager", "HierarchicalModelAverager")


def network():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))


def power_sgd(rank=1):
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)


def local_sgd():
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return post_localSGD_hook.PostLocalSGDState(None, groups[dist.get_rank()], start_localSGD_iter=3)


def plain():
    return None


# Name: the hook and what makes its state.
HOOKS = {
    "allreduce_hook": (default_hooks.allreduce_hook, plain),
    "fp16_compress_hook": (default_hooks.fp16_compress_hook, plain),
    "bf16_compress_hook": (default_hooks.bf16_compress_hook, plain),
    "fp16 around PowerSGD": (default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook), power_sgd),
    "bf16 around allreduce": (default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook), plain),
    "powerSGD_hook": (powerSGD_hook.powerSGD_hook, power_sgd),
    "powerSGD_hook, rank 2": (powerSGD_hook.powerSGD_hook, partial(power_sgd, 2)),
    "quantization_pertensor_hook": (quantization_hooks.quantization_pertensor_hook, plain),
    "quantization_perchannel_hook": (quantization_hooks.quantization_perchannel_hook, plain),
    "post_localSGD_hook": (post_localSGD_hook.post_localSGD_hook, local_sgd),
    "noop_hook": (debugging_hooks.noop_hook, plain),
}


def waits(hook):
    """Ends each bucket before the next one: Gloo has no order of what callbacks and the program call meanwhile, and
    with several buckets mixes them up."""
    def waiting(state, bucket):
        future = hook(state, bucket)
        future.wait()
        return future
    return waiting


def batch(rank, step):
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + rank))


def values(module):
    return torch.cat([value.detach().flatten() for value in module.parameters()])


def wrapped(**options):
    torch.manual_seed(3)
    return DistributedDataParallel(network(), bucket_cap_mb=0.004, **options)


def step_of(ddp, optimizer, rank, step):
    ddp.zero_grad()
    ddp(batch(rank, step)).pow(2).mean().backward()
    if optimizer:
        optimizer.step()


def with_hook(rank, hook):
    ddp = wrapped()
    hook(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(STEPS):
        step_of(ddp, optimizer, rank, step)
    return values(ddp)


def overlapped_optimizer(rank):
    ddp = wrapped()
    _as_overlapped_optim(torch.optim.SGD, ddp.parameters(), lr=0.05).register_ddp(ddp)
    for step in range(STEPS):
        step_of(ddp, None, rank, step)
    return values(ddp)


def averaged(rank, averager):
    torch.manual_seed(3)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(STEPS):
        step_of(net, optimizer, rank, step)
        averager.average_parameters(net.parameters())
    return values(net)


def zero(rank, hook=None):
    """With a hook the optimizer's step is part of the backward, but for the first few, which prepare."""
    ddp = wrapped(static_graph=hook is not None)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.05, overlap_with_ddp=hook is not None)
    if hook:
        ddp.register_comm_hook(None, hook(default_hooks.allreduce_hook, ddp, optimizer))
    step = 0
    while step < STEPS:
        before = values(ddp)
        step_of(ddp, None if hook else optimizer, rank, step)
        step += not torch.equal(before, values(ddp))
    return values(ddp)


def joined(rank):
    """Ranks with other numbers of batches, under the Join of DDP and of an optimizer."""
    ddp = wrapped()
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.05)
    with Join([ddp, optimizer]):
        for step in range(STEPS - rank):
            step_of(ddp, optimizer, rank, step)
    return values(ddp)


def of_shards(rank, size):
    """The hooks that FSDP takes, but for the compressing ones, which need a stream of an accelerator."""
    state = sharded.DefaultState(dist.group.WORLD)
    grad, output = batch(rank, 0).flatten(), torch.zeros(256 // size)
    sharded.allreduce_hook(state, grad)
    sharded.reduce_scatter_hook(state, batch(rank, 1).flatten(), output)
    return torch.cat([grad, output])


def everything(rank, size, serial):
    warnings.simplefilter("ignore")
    results = {}
    for name, (hook, state) in HOOKS.items():
        results[name] = with_hook(
            rank, lambda ddp: ddp.register_comm_hook(state(), waits(hook) if serial else hook))  # pylint: disable=cell-var-from-loop
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        results[str(kind)] = with_hook(rank, lambda ddp: ddp._register_builtin_comm_hook(kind))  # pylint: disable=cell-var-from-loop,protected-access
    results["overlapped optimizer"] = overlapped_optimizer(rank)
    results["PeriodicModelAverager"] = averaged(rank, PeriodicModelAverager(period=3, warmup_steps=2))
    results["HierarchicalModelAverager"] = averaged(
        rank, HierarchicalModelAverager(period_group_size_dict=OrderedDict([(3, size)]), warmup_steps=2))
    results["ZeroRedundancyOptimizer"] = zero(rank)
    results["Join"] = joined(rank)
    results["hooks of FSDP"] = of_shards(rank, size)
    return {name: result.tolist() for name, result in results.items()}


class Hooks(unittest.TestCase):
    def test_against_gloo(self):
        for size in (2, 4):
            expected = ranks(size, lambda rank, size: everything(rank, size, serial=True), backend="gloo")
            for transport in ("auto", "tcp"):
                outcomes = ranks(size, lambda rank, size: everything(rank, size, serial=False), transport=transport)
                for rank in range(size):
                    for name, result in outcomes[rank].items():
                        distance = (torch.tensor(result) - torch.tensor(expected[rank][name])).abs().max().item()
                        with self.subTest(name, transport=transport, rank=rank, size=size):
                            self.assertLessEqual(distance, 2e-5 if "16" in name else 2e-6)
                            if name not in OF_EACH_RANK:
                                self.assertTrue(result == outcomes[0][name])

    def test_optimizer_in_backward(self):
        """ZeRO's hooks, which refuse Gloo: against ZeRO without one."""
        def body(rank, _):
            return [zero(rank).tolist()] + [zero(rank, hook).tolist() for hook in (
                ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved)]
        for rank, (plainly, *hooked) in enumerate(ranks(2, body)):
            for result in hooked:
                self.assertLessEqual((torch.tensor(result) - torch.tensor(plainly)).abs().max().item(), 2e-6, rank)

    def test_that_none_is_left_out(self):
        tested = set(HOOKS) | set(ELSEWHERE)
        for module in (debugging_hooks, default_hooks, mixed_precision_hooks, optimizer_overlap_hooks,
                       post_localSGD_hook, powerSGD_hook, quantization_hooks):
            for name, function in inspect.getmembers(module, inspect.isfunction):
                if (function.__module__ == module.__name__ and name != "_compress_hook"
                        and name.endswith(("_hook", "_wrapper", "_optimizer"))):
                    self.assertIn(name, tested, module.__name__)


if __name__ == "__main__":
    unittest.main()
