"""PyTorch's DistributedDataParallel over duet: against Gloo, and what fails is named on every rank."""
import os
import signal
import unittest
import unittest.mock
from datetime import timedelta

import duet_torch
import torch
import torch._dynamo  # noqa: F401, once here instead of in every rank, where DDP needs it
import torch.distributed as dist
import torch.nn.functional as F
from c10d_ranks import ranks
from checks import error_of
from duet_torch import _extension
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """The tutorials' small network, with a batch norm and a layer that not every step uses."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(144, 20)
        self.extra = nn.Linear(20, 20)
        self.out = nn.Linear(20, 10)

    def forward(self, x, extra=True):
        x = F.relu(F.max_pool2d(self.norm(self.conv(x)), 2)).flatten(1)
        x = F.relu(self.hidden(x))
        return self.out(self.extra(x) if extra else x)


def train(rank, size, steps=20, hook=None, uneven=False, **options):
    """The values of the state after the training, and the buckets' bytes."""
    torch.manual_seed(rank)  # DDP broadcasts rank 0's
    net = Net()
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.01, **options)
    if hook:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.5)
    draw = torch.Generator().manual_seed(7)
    x, y = torch.randn(64, 1, 16, 16, generator=draw), torch.randint(0, 10, (64,), generator=draw)
    unused = options.get("find_unused_parameters", False)
    with ddp.join(enable=uneven):
        for step in range(steps - (rank if uneven else 0)):
            rows = slice(rank * 64 // size, (rank + 1) * 64 // size)
            optimizer.zero_grad()
            if step % 5 == 4:
                with ddp.no_sync():
                    F.cross_entropy(ddp(x[rows]), y[rows]).backward()
            F.cross_entropy(ddp(x[rows], *([step % 3 != 0] if unused else [])), y[rows]).backward()
            optimizer.step()
    return torch.cat([value.double().flatten() for value in net.state_dict().values()])


class Training(unittest.TestCase):
    def compare(self, sizes=(2, 4), limit=1e-6, **options):
        for size in sizes:
            def body(rank, size):
                return train(rank, size, **options).tolist()
            results = {backend: [torch.tensor(values, dtype=torch.float64) for values in ranks(size, body, backend)]
                       for backend in ("duet", "gloo")}
            # A batch norm's statistics are each rank's own after its last step.
            weights = sum(value.numel() for value in Net().conv.parameters()) + 8
            for values in results["duet"]:
                self.assertTrue(torch.equal(values[:weights], results["duet"][0][:weights]))
                self.assertTrue(torch.equal(values[-600:], results["duet"][0][-600:]))
            for one, other in zip(results["duet"], results["gloo"]):
                self.assertLessEqual((one - other).abs().max().item(), limit)

    def test_plain(self):
        self.compare()

    def test_views_and_static_graph(self):
        self.compare(sizes=(2,), gradient_as_bucket_view=True, static_graph=True)

    def test_unused_parameters(self):
        self.compare(sizes=(2,), find_unused_parameters=True)

    def test_hook(self):
        self.compare(sizes=(2,), hook=bf16_compress_hook)

    def test_uneven_inputs(self):
        self.compare(sizes=(3,), uneven=True)

    def test_same_bits_over_tcp(self):
        def body(rank, size):
            return train(rank, size).tolist()
        self.assertEqual(ranks(2, body), ranks(2, body, transport="tcp"))


class Faults(unittest.TestCase):
    def everywhere(self, size, call, *texts, seconds=60):
        """The error of call(rank) has all texts, on every rank."""
        for transport in ("auto", "tcp"):
            for rank, error in enumerate(ranks(size, lambda rank, _: error_of(lambda: call(rank)), transport=transport,
                                               seconds=seconds)):
                for text in ("DistBackendError", *texts):
                    self.assertIn(text, error, f"{transport}, rank {rank}")

    def test_other_shapes(self):
        self.everywhere(3, lambda rank: dist.all_reduce(torch.ones(8 + (rank == 1))),
                        "the ranks disagree: ranks 0, 2 call all_reduce of 8 f32 (sum); rank 1 calls all_reduce of 9 f32 (sum)")

    def test_other_collectives(self):
        self.everywhere(2, lambda rank: dist.barrier() if rank else dist.broadcast(torch.ones(5), 0),
                        "rank 0 calls broadcast of 5 f32 from rank 0", "rank 1 calls barrier")

    def test_other_dtypes_and_reductions(self):
        self.everywhere(2, lambda rank: dist.all_reduce(torch.ones(4, dtype=(torch.float64, torch.float32)[rank])),
                        "rank 0 calls all_reduce of 4 f64 (sum)", "rank 1 calls all_reduce of 4 f32 (sum)")
        self.everywhere(2, lambda rank: dist.all_reduce(torch.ones(4), (dist.ReduceOp.MAX, dist.ReduceOp.SUM)[rank]),
                        "rank 0 calls all_reduce of 4 f32 (max)", "rank 1 calls all_reduce of 4 f32 (sum)")

    def test_ranks_of_ddp_out_of_step(self):
        def call(rank):
            ddp = DistributedDataParallel(Net())
            for step in range(3):
                if rank == 1 and step == 2:
                    dist.barrier()
                ddp(torch.ones(2, 1, 16, 16)).sum().backward()
        self.everywhere(2, call, "the ranks disagree", "rank 1 calls barrier")

    def test_rank_that_does_not_call(self):
        def body(rank, _):
            if rank == 0:
                return error_of(lambda: dist.all_reduce(torch.ones(4)))
            return error_of(lambda: dist.recv(torch.ones(4), 0))
        first, second = ranks(2, body, seconds=1)
        self.assertRegex(first, "all_reduce #0 failed on rank 0: rank 1 (did not come in time|has closed the connection)")
        self.assertIn("rank 0", second)

    def test_wait_with_a_limit(self):
        def body(rank, _):
            if rank == 1:
                dist.recv(torch.ones(1), 0)
            tensor = torch.ones(4)
            work = dist.all_reduce(tensor, async_op=True)
            error = error_of(lambda: work.wait(timedelta(milliseconds=10))) if rank == 0 else ""
            if rank == 0:
                dist.send(torch.ones(1), 1)
            work.wait()
            return error, tensor.tolist()
        first, second = ranks(2, body)
        self.assertEqual(first, ("DistBackendError: duet:all_reduce: Timed out waiting 10ms for the operation to complete", [2.0] * 4))
        self.assertEqual(second, ("", [2.0] * 4))

    def test_killed_rank(self):
        def body(rank, _):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
            return error_of(future.wait), error_of(dist.barrier)
        for transport in ("auto", "tcp"):
            outcomes = ranks(3, body, transport=transport, killed=(1,), seconds=1000)  # not found by a timeout
            for rank in (0, 2):
                first, later = outcomes[rank]
                self.assertRegex(first, r"all_reduce #1 failed on rank \d: .*rank 1")
                self.assertIn("DistBackendError: the process group has failed: all_reduce #1", later)

    def test_timeout_in_pytorchs_words(self):
        for transport in ("auto", "tcp"):
            def body(rank, _):
                if rank == 1:
                    return dist.distributed_c10d._get_default_store().get("done") and ""
                error = error_of(dist.barrier)
                dist.distributed_c10d._get_default_store().set("done", "1")
                return error
            error = ranks(2, body, transport=transport, seconds=1)[0]
            self.assertRegex(error, "DistBackendError: duet:barrier: Timed out waiting for the operation to complete: "
                             "barrier #0 failed on rank 0: rank 1 .* in time")

    def test_monitored_barrier(self):
        def body(rank, size):
            barrier = dist.group.WORLD.monitored_barrier
            results = [error_of(lambda: barrier(timedelta(seconds=60)))]
            if rank in (0, 1):
                results.append(error_of(lambda: barrier(timedelta(milliseconds=200))))
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            return results + [tensor.tolist() == [size] * 2]
        late = "DistBackendError: [Rank {}]: ranks 2, 3 failed to pass monitored_barrier in 200 ms"
        self.assertEqual(ranks(4, body), [["", late.format(0), True], ["", late.format(1), True], ["", True], ["", True]])

    def test_abort(self):
        """Of a call that is in flight, on this rank and on the peers."""
        for transport in ("auto", "tcp"):
            def body(rank, _):
                group = dist.new_group([0, 1])
                future = dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future() if rank == 0 else None
                dist.barrier()
                if rank == 1:
                    group._get_backend(torch.device("cpu")).abort()
                errors = error_of(future.wait) if rank == 0 else error_of(group.barrier)
                dist.barrier()
                return errors
            first, second = ranks(2, body, transport=transport)
            self.assertRegex(first, "all_reduce #0 failed on rank 0: .*rank 1")
            self.assertEqual(second, "ValueError: duet:barrier: the process group has been shut down")

    def test_another_group_after_the_last(self):
        def body(rank, size):
            store = dist.distributed_c10d._get_default_store()
            sums = []
            for turn in range(3):
                dist.destroy_process_group()
                dist.init_process_group("duet", store=dist.PrefixStore(str(turn), store), rank=rank, world_size=size)
                tensor = torch.ones(2)
                dist.all_reduce(tensor)
                sums.append(tensor.tolist())
            return sums
        self.assertEqual(ranks(3, body), [[[3.0] * 2] * 3] * 3)

    def test_after_the_end(self):
        def body(_rank, _size):
            group = dist.new_group([0, 1])
            dist.destroy_process_group(group)
            return error_of(group.barrier)
        for error in ranks(2, body):
            self.assertEqual(error, "ValueError: duet:barrier: the process group has been shut down")

    def test_options(self):
        self.assertIn("Invalid backend: 'nope'", error_of(lambda: ranks(2, lambda *_: None, transport="nope")))
        with unittest.mock.patch.dict(os.environ, DUET_BACKEND="tcp"):
            self.assertEqual(duet_torch.Options().backend, "tcp")
        self.assertEqual(duet_torch.Options(backend="shm").backend, "shm")
        def body(_rank, _size):
            return error_of(lambda: dist.new_group([0, 1], backend="duet", pg_options="tcp"))
        self.assertEqual(ranks(2, body)[0],
                         "TypeError: pg_options of the backend duet are duet_torch.Options, got str")

    def test_what_an_import_lacks(self):
        lacks = "libdnnl.so.2: cannot open shared object file: No such file or directory"
        self.assertEqual(_extension.explanation(lacks), "duet_torch needs the library libdnnl.so.2, which was not found; "
                         "Debian has it in libdnnl2 (Debian 12) or libdnnl3.6 (13)")
        self.assertEqual(_extension.explanation(lacks.replace("dnnl", "other")),
                         "duet_torch needs the library libother.so.2, which was not found")
        self.assertEqual(_extension.explanation("undefined symbol: other"), "")
        with unittest.mock.patch.object(_extension, "TORCH_VERSION", "2.7.1"):
            self.assertEqual(error_of(_extension.import_extension), "ImportError: duet_torch was built for PyTorch 2.7, "
                             f"got {torch.__version__}: build it again, or install torch==2.7.*")


if __name__ == "__main__":
    unittest.main()
