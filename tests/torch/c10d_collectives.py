"""torch.distributed's collectives over duet, with the values that PyTorch's own tests expect of Gloo."""
import math
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
from c10d_ranks import ranks
from checks import error_of

REDUCED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
MOVED = REDUCED + (torch.bool, torch.int8, torch.int16, torch.complex64)
SIZES = (1, 2, 3, 4)


def full(value, dtype=torch.float32):
    """Six numbers; of strides other than those of a contiguous tensor."""
    return torch.full((3, 2), float(value)).to(dtype).t()


def number(value, dtype):
    return full(value, dtype)[0, 0].item()


class Collectives(unittest.TestCase):
    def everywhere(self, body, sizes=SIZES, transports=("auto", "tcp")):
        """body(rank, size) gives pairs of a value and what is expected."""
        for transport in transports:
            for size in sizes:
                outcomes = ranks(size, lambda rank, size: [(str(a), str(b)) for a, b in body(rank, size)],
                                 transport=transport)
                for rank, pairs in enumerate(outcomes):
                    for index, (value, expected) in enumerate(pairs):
                        self.assertEqual(value, expected, f"{transport}, rank {rank} of {size}, value {index}")

    def test_broadcast(self):
        def body(rank, size):
            for dtype in MOVED:
                for root in range(size):
                    tensor = full(rank + 1 if rank == root else 0, dtype)
                    dist.broadcast(tensor, root)
                    yield tensor, full(root + 1, dtype)
        self.everywhere(body)

    def test_all_reduce(self):
        def body(rank, size):
            total = size * (size + 1) / 2
            expected = {dist.ReduceOp.SUM: total, dist.ReduceOp.PRODUCT: math.factorial(size), dist.ReduceOp.MIN: 1,
                        dist.ReduceOp.MAX: size}
            for dtype in REDUCED:
                for op, value in expected.items():
                    tensor = full(rank + 1, dtype)
                    dist.all_reduce(tensor, op)
                    yield tensor, full(value, dtype)
                if dtype.is_floating_point:
                    tensor = full(rank + 1, dtype)
                    dist.all_reduce(tensor, dist.ReduceOp.AVG)
                    yield tensor, full(total / size, dtype)
            value = torch.complex(torch.tensor([rank + 1.0]), torch.tensor([2.0]))
            dist.all_reduce(value)
            yield value, torch.complex(torch.tensor([total]), torch.tensor([2.0 * size]))
        self.everywhere(body)

    def test_reduce(self):
        def body(rank, size):
            for root in range(size):
                tensor = full(rank + 1)
                dist.reduce(tensor, root)
                yield tensor, full(size * (size + 1) / 2 if rank == root else rank + 1)
        self.everywhere(body)

    def test_gather_and_scatter(self):
        def body(rank, size):
            for dtype in MOVED:
                for root in range(size):
                    outputs = [full(0, dtype) for _ in range(size)] if rank == root else None
                    dist.gather(full(rank, dtype), outputs, root)
                    yield outputs, [full(r, dtype) for r in range(size)] if rank == root else None
                    output = full(0, dtype)
                    dist.scatter(output, [full(root + r, dtype) for r in range(size)] if rank == root else None, root)
                    yield output, full(root + rank, dtype)
        self.everywhere(body)

    def test_all_gather(self):
        def body(rank, size):
            for dtype in MOVED:
                outputs = [full(0, dtype) for _ in range(size)]
                dist.all_gather(outputs, full(rank, dtype))
                yield outputs, [full(r, dtype) for r in range(size)]
                output = torch.zeros(2 * size).to(dtype)
                dist.all_gather_into_tensor(output, torch.full((2,), float(rank)).to(dtype))
                yield output, torch.arange(size).repeat_interleave(2).to(dtype)
            with torch.inference_mode():
                outputs = [full(0) for _ in range(size)]
                dist.all_gather(outputs, full(rank))
                yield outputs, [full(r) for r in range(size)]
        self.everywhere(body)

    def test_reduce_scatter(self):
        def body(rank, size):
            summed, ranked = rank * size + size * (size - 1) / 2, [float(rank + r) for r in range(size)]
            for op, value in ((dist.ReduceOp.SUM, summed), (dist.ReduceOp.MIN, rank), (dist.ReduceOp.MAX, rank + size - 1),
                              (dist.ReduceOp.PRODUCT, math.prod(range(rank, rank + size))),
                              (dist.ReduceOp.AVG, summed / size)):
                output = full(0)
                dist.reduce_scatter(output, [full(value) for value in ranked], op)
                yield output, full(value)
                output = torch.zeros(1)
                dist.reduce_scatter_tensor(output, torch.tensor(ranked), op)
                yield output, torch.tensor([float(value)])
        self.everywhere(body)

    def test_all_to_all(self):
        def body(rank, size):
            output = torch.zeros(size)
            dist.all_to_all_single(output, torch.arange(size) + 10.0 * rank)
            yield output, torch.arange(size) * 10.0 + rank
            # From rank r to rank s: r + s numbers, so that rank 0 gives itself none.
            output = torch.zeros(sum(r + rank for r in range(size)), 2)
            dist.all_to_all_single(output, torch.full((sum(rank + s for s in range(size)), 2), float(rank)),
                                   [r + rank for r in range(size)], [rank + s for s in range(size)])
            yield output, torch.cat([torch.full((r + rank, 2), float(r)) for r in range(size)])
            outputs = [full(0) for _ in range(size)]
            dist.all_to_all(outputs, [full(10 * rank + s) for s in range(size)])
            yield outputs, [full(10 * r + rank) for r in range(size)]
        self.everywhere(body)

    def test_messages(self):
        def body(rank, size):
            others = [r for r in range(size) if r != rank]
            sent = [dist.isend(full(10 * rank + tag), r, tag=tag) for r in others for tag in (0, 1)]
            received = [full(0) for _ in range(2 * size)]
            for r in others:
                for tag in (1, 0):
                    dist.recv(received[2 * r + tag], r, tag=tag)
                    yield received[2 * r + tag], full(10 * r + tag)
            for work in sent:
                work.wait()
                yield work.is_completed(), True
            dist.barrier()
            if others:
                buffer = torch.zeros(3)
                for work in dist.batch_isend_irecv([
                        dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
                        dist.P2POp(dist.irecv, buffer, (rank - 1) % size)]):
                    work.wait()
                yield buffer, torch.full((3,), float((rank - 1) % size))
        self.everywhere(body, sizes=(2, 3, 4))

    def test_empty_and_coalesced(self):
        def body(rank, size):
            for call in (dist.all_reduce, lambda t: dist.broadcast(t, 0), lambda t: dist.reduce(t, 0),
                         lambda t: dist.all_gather([torch.zeros(0) for _ in range(size)], t)):
                tensor = torch.zeros(0)
                call(tensor)
                yield tensor, torch.zeros(0)
            tensors = [torch.full((n,), float(rank + n)) for n in (1, 4, 7)]
            with dist._coalescing_manager():
                for tensor in tensors:
                    dist.all_reduce(tensor)
            yield tensors, [torch.full((n,), float(sum(r + n for r in range(size)))) for n in (1, 4, 7)]
            outputs = [torch.zeros(size * n) for n in (1, 3)]
            with dist._coalescing_manager():
                for output, n in zip(outputs, (1, 3)):
                    dist.all_gather_into_tensor(output, torch.full((n,), float(rank)))
            yield outputs, [torch.arange(float(size)).repeat_interleave(n) for n in (1, 3)]
            lists = [[torch.zeros(1), torch.zeros(3)] for _ in range(size)]
            dist.all_gather_coalesced(lists, [torch.full((n,), float(rank + n)) for n in (1, 3)])
            yield lists, [[torch.full((n,), float(r + n)) for n in (1, 3)] for r in range(size)]
            outputs = [torch.zeros(n) for n in (1, 3)]
            with dist._coalescing_manager():
                for output, n in zip(outputs, (1, 3)):
                    dist.reduce_scatter_tensor(output, torch.arange(float(size)).repeat_interleave(n))
            yield outputs, [torch.full((n,), float(rank * size)) for n in (1, 3)]
        self.everywhere(body)

    def test_objects_and_groups(self):
        def body(rank, size):
            objects = [None] * size
            dist.all_gather_object(objects, {"rank": rank})
            yield objects, [{"rank": r} for r in range(size)]
            box = [f"of {rank}"]
            dist.broadcast_object_list(box, size - 1)
            yield box, [f"of {size - 1}"]
            groups = [dist.new_group(list(range(first, size, 2))) for first in (0, 1) if first < size]
            tensor = full(rank + 1)
            dist.all_reduce(tensor, group=groups[rank % 2])
            yield tensor, full(sum(range(rank % 2 + 1, size + 1, 2)))
            dist.all_reduce(tensor)
            yield dist.get_backend(), "duet"
        self.everywhere(body)

    def test_asynchronous(self):
        def body(rank, size):
            tensors = [full(rank + n) for n in range(5)]
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            sums = [full(sum(r + n for r in range(size))) for n in range(5)]
            yield works[3].get_future().then(lambda future: str(future.value())).wait(), str([sums[3]])
            works[4].wait()
            works[1].wait()
            while not works[0].is_completed():
                pass
            works[2].wait(timeout=timedelta(seconds=60))
            yield tensors, sums
            for n in range(20):
                dist.all_reduce(full(n), async_op=True)  # dropped, as is its tensor
            last = full(1)
            dist.all_reduce(last)
            yield last, full(size)
        self.everywhere(body)

    def test_collectives_of_callbacks(self):
        """They come after the call of the future and before the program's next one, in whichever thread the callback runs."""
        def body(rank, size):
            total = float(sum(range(size)))
            def chain(future):
                tensor = future.value()[0]
                gathered = [torch.zeros(2) for _ in range(size)]
                dist.all_gather(gathered, tensor + rank, async_op=True).get_future().wait()
                dist.all_reduce(tensor)
                inner = dist.all_reduce(tensor, async_op=True)
                return inner.get_future().then(lambda last: [gathered, last.value()[0]]).wait()
            for _ in range(20):
                # All of one size, so that no check of the ranks' calls would find that two have changed places.
                futures = [dist.all_reduce(torch.full((2,), float(rank)), async_op=True).get_future().then(chain)
                           for _ in range(4)]
                plain = torch.full((2,), float(rank))
                dist.all_reduce(plain)
                yield plain, torch.full((2,), total)
                for future in futures:
                    yield future.wait(), [[torch.full((2,), total + r) for r in range(size)],
                                          torch.full((2,), total * size * size)]
        self.everywhere(body, sizes=(2, 3))

    def test_futures_of_all(self):
        def body(rank, size):
            outputs = [torch.zeros(2) for _ in range(size)]
            work = dist.all_to_all(outputs, [torch.full((2,), float(r)) for r in range(size)], async_op=True)
            yield work.get_future().wait(), [torch.full((2,), float(rank))] * size
            output = torch.zeros(size)
            work = dist.all_to_all_single(output, torch.arange(float(size)), [1] * size, [1] * size, async_op=True)
            yield work.get_future().then(lambda _: str(output)).wait(), str(torch.full((size,), float(rank)))
            failed = dist.barrier(async_op=True).get_future().then(lambda _: 1 // 0)
            yield error_of(failed.wait).splitlines()[0].startswith("RuntimeError: "), True
        self.everywhere(body)

    def test_refused(self):
        def body(rank, size):
            yield error_of(lambda: dist.all_reduce(torch.ones(2, dtype=torch.int8))), (
                "ValueError: duet:all_reduce: cannot reduce Char: duet reduces Float, Double, Half, BFloat16, Int, Long and Byte")
            yield error_of(lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BAND)), (
                "ValueError: duet:all_reduce: duet has no ReduceOp BAND")
            yield error_of(lambda: dist.recv(torch.ones(2))), (
                "RuntimeError: Backend duet does not support recvAnysource")
            yield error_of(lambda: dist.all_reduce(torch.ones(2).to_sparse())), (
                "ValueError: duet:all_reduce: expected dense tensors in the host's memory, got Sparse on cpu")
            yield error_of(lambda: dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(2))), (
                "ValueError: duet:all_gather: expected tensors of one size and dtype, got [2] Float and [3] Float")
            group = dist.group.WORLD._get_backend(torch.device("cpu"))
            options = dist.BroadcastOptions()
            options.rootRank = size
            yield error_of(lambda: group.broadcast([torch.ones(1)], options)), (
                f"ValueError: duet:broadcast: invalid root rank: {size} of {size}")
            lists = [] if rank == 0 else [[torch.ones(1)]]
            yield error_of(lambda: group.gather(lists, [torch.ones(1)], dist.GatherOptions())), (
                f"ValueError: duet:gather: got {rank} lists on rank {rank}, expected one on the root only, rank 0")
            tensor = full(1)
            dist.all_reduce(tensor)
            yield tensor, full(size)
        self.everywhere(body, sizes=(2,))


if __name__ == "__main__":
    unittest.main()
