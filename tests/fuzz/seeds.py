#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets, and words that they may hold.

    seeds.py FOLDER        FOLDER/TARGET/* are inputs, FOLDER/TARGET.dict words for libFuzzer's -dict
"""
import base64
import gzip
import json
import os
import re
import shutil
import struct
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def source(*names):
    texts = []
    for name in names:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            texts.append(file.read())
    return "\n".join(texts)


def text(content):
    """As Input::text() reads it."""
    content = content if isinstance(content, bytes) else content.encode()
    return bytes([len(content)]) + content


def u16(number):
    return struct.pack("<H", number)


def tensors(entries, data):
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def safetensors():
    one = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}
    two = {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]}
    yield b"\0" + tensors({"__metadata__": {"format": "pt"}, "conv1.weight": one, "b": two}, bytes(11))
    yield b"\0" + tensors({"module.a": one}, bytes(8))
    yield b"\0" + tensors({"x": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}}, b"ab")
    yield b"\0" + tensors({}, b"")
    yield b"\1" + tensors({"__metadata__": {"duet.sha256": "0" * 64}, "a": one}, bytes(8))


def checkpoint():
    metadata = b"\0" + text("1") + b"\0" + text("2") + b"\0" + text("97.5") + b"\0" + text("SimpleCNN")
    settings = u16(1) + text("seed") + text("1234")
    entries = u16(2) + b"\0" + u16(2) + u16(2) + b"\7" + text("conv1.weight")
    entries += b"\1" + u16(3) + u16(1) + b"\1" + text("optimizer.conv1.weight")
    whole = metadata + settings + entries
    yield whole + u16(0) + b"\0" + text("") + b"\0"
    yield whole + u16(1) + u16(100) + b"\1" + b"\0" + text("") + b"\1"
    yield whole + u16(0) + b"\1" + u16(9) + text("") + b"\1"
    yield metadata + u16(0) + u16(0) + u16(0) + b"\0" + text("tail") + b"\1"


def idx():
    images = struct.pack(">4I", 2051, 2, 3, 2) + bytes(range(12))
    labels = struct.pack(">2I", 2049, 5) + bytes([0, 1, 9, 3, 4])
    for content, is_images in ((images, 1), (labels, 0)):
        for packed, named in ((0, 0), (1, 0), (1, 1)):
            for by_path in (0, 1):
                yield bytes([is_images, by_path, named, packed]) + content
        yield bytes([is_images, 0, 1, 0]) + gzip.compress(content, 9, mtime=0)
        yield bytes([is_images, 1, 0, 0]) + gzip.compress(content[:9], mtime=0) + gzip.compress(content[9:], mtime=0)


def image():
    # The strings of each sample of the tests that follow its hash.
    for sample in re.findall(r'"[0-9a-f]{16}",((?:\s*"[^"]*")+)', source("tests/data/images/samples.cpp")):
        content = base64.b64decode("".join(re.findall(r'"([^"]*)"', sample)))
        yield b"\0\0\0\xff" + content
        yield b"\1\x30\x60\x80" + content


def frame(code, timeout, *strings):
    """As frame_of() reads it."""
    out = bytes([0, code, timeout]) + u16(len(strings))
    return out + b"".join(b"\0" + text(one) for one in strings)


def body(code, *strings):
    out = struct.pack("<BqI", code, 1000, len(strings))
    return out + b"".join(struct.pack("<I", len(one)) + one for one in strings)


def store_wire():
    yield b"\0" + body(0, b"key", b"value")
    yield b"\0" + body(1, b"", b"a" * 40, b"b")
    yield b"\0" + body(7)
    header = struct.pack("<QqiiBBB5x", 0, 1, 0, 0, 1, 0, 0)
    calls = struct.pack("<3Q", 0, 1, 7) + header
    yield b"\1" + text(calls) + b"\0" + text("") + b"\1" + u16(56) + u16(0)
    yield b"\1" + text("") + b"\1" + u16(24 + 3 * 40) + u16(0)


def store_server():
    ops = [(0, "a", "1"), (1, "a"), (2, "a", "b"), (3, "n", "4"), (4, "a"), (5, "a", "1", "2"), (6, "a"), (7,), (8, "a", "x")]
    frames = [frame(code, 2, *strings) + b"\0" for code, *strings in ops]
    yield u16(0) + b"\0" + b"".join(u16(0) + one for one in frames)
    late = u16(0) + frame(1, 3, "late") + b"\0" + u16(1) + frame(0, 0, "late", "value") + b"\0"
    yield u16(1) + b"\0\0" + late + u16(0) + frames[7]
    yield u16(2) + b"\0\1\4" + text("no proof") + u16(0) + frames[0]
    yield u16(0) + b"\2" + text("GET / HTTP/1.1\r\n\r\n")
    yield u16(0) + b"\3" + text("short")
    yield u16(0) + b"\5"
    yield u16(0) + b"\0" + u16(0) + b"\7" + text(b"\xff\xff\xff\x7f") + b"\0"
    yield u16(0) + b"\0" + u16(0) + frame(0, 2, "a", "1") + b"\7" + u16(0) + frames[1]


def store_client():
    asked = u16(3) + bytes([1, 3, 9, 7]) + text("b")
    answers = [frame(0, 0, "value"), frame(0, 0, "5"), frame(0, 0, "x", "y"), frame(0, 0, "2"), frame(1, 0, "why"), frame(2, 0)]
    yield asked + u16(4) + b"".join(answers[:4]) + b"\0" + b"\0" * 4
    yield asked + u16(2) + b"".join(answers[4:]) + b"\0" + b"\0" * 2
    yield asked + u16(2) + b"".join(answers[:2]) + b"\0" + b"\0\7"
    yield asked + u16(1) + b"\7" + text(b"\xff\xff\xff\x7f") + b"\0" + b"\0"
    refusals = (b"\1", b"\2\0", b"\2\1", b"\3\1" + text(bytes(18)), b"\3\0" + text("HTTP/1.1 400 Bad Request\r\n"))
    for wrong in (*refusals, b"\4", b"\5", b"\6" + text("x")):
        yield asked + u16(0) + wrong


def file_store():
    def record(run, key, value, op=b"\1"):
        return run + text(key) + text(value) + op

    log = b"\0" + u16(3) + record(b"\1", "a", "1") + record(b"\1", "b", "2") + record(b"\0" + text("other"), "a", "9")
    ops = [b"\1\0" + b"\1" + struct.pack("<q", 5), b"\1\1\0" + text("x"), b"\1\0\3", b"\1\0\4" + text("1") + text("2"), b"\1\0\5"]
    yield log + text("") + b"".join(ops)
    yield log + text("torn") + b"\1\0\6"
    yield b"\0" + u16(1) + record(b"\1", "a", "", b"\0d") + text("") + b"\0" + text("key") + b"\0" + text("value")
    yield b"\1" + u16(0) + text("not a store")


def error_file():
    extra = {"timestamp": "1", "py_callstack": "t", "report": "a", "rank": 1, "consequence": True,
             "by_signal": True, "monotonic_ns": 5}
    yield json.dumps({"message": {"message": "rank 1 failed", "extraInfo": extra}}).encode()
    yield json.dumps({"message": "text"}).encode()
    yield json.dumps({"message": {"message": "\u00e9", "extraInfo": []}}).encode()


def flight_record():
    def line(sequence, count, progress):
        return struct.pack("<Ii4B2hqiB3x3q", 1, sequence, 1, 0, 0, 4, 0, 0, count, 3, progress, 100, 110, 0)

    def record(lines):
        header = u16(1) + u16(16) + text(struct.pack("<qqIhBB", 3, 0, 1, -1, 4, 0))
        return b"\0\0" + u16(len(lines)) + b"".join(text(one) for one in lines) + header

    busy, done = record([line(0, 10, 2), line(1, 20, 1)]), record([line(0, 10, 2)])
    yield u16(1) + busy + done + u16(0) + struct.pack("<q", 5_000_000)
    yield u16(2) + busy + busy + done + u16(2) + struct.pack("<q", 1)
    yield u16(0) + b"\1" + text("short")


ENVIRONMENTS = (
    "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 TORCHELASTIC_RUN_ID=x DUET_JOB=y",
    "RANK=1 WORLD_SIZE=2 KUBERNETES_SERVICE_HOST=h PET_NNODES=2",
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=j",
    "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2",
    "SLURM_STEP_ID=0 SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=0 SLURM_NODEID=2 "
    "SLURM_STEP_TASKS_PER_NODE=3(x2),1 SLURM_JOB_ID=7 SLURM_RESTART_COUNT=1",
    "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=2",
)


def rank_resolver():
    for variables in ENVIRONMENTS:
        yield variables.replace(" ", "\n").encode()
    yield (ENVIRONMENTS[0] + " " + ENVIRONMENTS[2]).replace(" ", "\n").encode()


def command_line():
    for line in ("train --mode ddp --devices 2 --epochs 1 --lr 0.1", "compare --devices 1,2 --modes single,dp --json",
                 "launch -n 2 --nnodes 2 --node-rank 1 --rdzv-endpoint h:29500 --tee 0:3,1:1 --log-dir d -- a b",
                 "launch --nproc_per_node=auto --standalone -- a", "bench all_reduce --backend shm,gloo --dtype bf16",
                 "bench all_reduce --devices 2 --backend shm,tcp", "compare --vs-torch python3", "info --json x", "help train", "--version", "trian",
                 "train --compat torch --device cpu --precision fp32 --workers thread --graph off"):
        yield line.replace(" ", "\n").encode()


def control_block():
    def begin(op, count, valid=0):
        return b"\4" + bytes([op]) + b"\1\0" + u16(count) + b"\0" + u16(0) + b"\0" + bytes([valid])

    def message(tag, sends=b""):
        return u16(tag) + u16(3) + sends

    ready, finish = b"\3\x50", b"\5"
    yield b"".join(begin(op, 100) + ready + finish for op in range(9))
    yield begin(1, 100) + b"\0" + u16(300) + text(b"\xff" * 16) + ready + finish
    yield b"\6" + message(0, b"\0") + b"\7" + message(0) + b"\0" + u16(0) + text("abcd") + b"\10"
    yield b"\7" + message(1) + b"\0" + u16(0) + text("abcd") + b"\10\6" + message(1, b"\0") + b"\6" + message(1, b"\1") + b"\10"
    yield b"\1" + u16(0) + text(b"\xff\xff\xff\xff") + b"\10" + b"\2" + u16(128) + text(b"\1") + b"\6" + message(0, b"\1") + b"\10"


def job_memory():
    def on(rank, operation, rest=b""):
        return u16(rank) + bytes([operation]) + rest

    def damage(at, value):
        return on(0, 0, bytes([at < 64]) + u16(at) + text(struct.pack("<I", value)))

    lose, arrive = on(1, 1, b"\1\1"), b"".join(on(rank, 3) for rank in range(3))
    commit = b"".join(on(rank, 2, struct.pack("<q", 7)) for rank in range(3))
    plans = b"".join(on(rank, 4, b"\1") for rank in range(3))
    for number in range(4):  # changes, ranks, state, planned
        for value in (0, 3, 0xffffffff):
            yield lose + arrive + damage(4 * number, value) + plans + on(2, 7)
    yield commit + lose + arrive + plans + commit + lose + on(1, 7)
    yield on(0, 2, struct.pack("<q", -5)) + lose + arrive + plans
    for at, value in ((40, 9), (40, 0xffffffff), (36, 0xffffffff)):  # the plan's source, and its step
        yield lose + arrive + on(0, 4, b"\1") + damage(at, value) + plans
    yield lose + damage(1092, 0x7fffffff) + on(0, 4, b"\1")  # when the first loss was seen
    yield on(1, 2, struct.pack("<q", 2**63 - 1)) + lose
    yield on(0, 5, struct.pack("<I", 6)) + on(1, 6, struct.pack("<I", 0))


def tcp_receiver():
    def head(tag, size):
        return b"\4" + bytes([tag]) + struct.pack("<Q", size)

    def receive(tag, size):
        return b"\0" + bytes([tag, 1]) + u16(size) + u16(31)

    def message(tag, size):
        return b"\7" + u16(size) + bytes([tag]) + u16(31)

    large = b"\3" + u16(2) + u16(3) + b"\1" + u16(100)
    yield receive(0, 8) + message(0, 8) + message(1, 4) + receive(1, 4)
    yield receive(0, 8) + large + message(0, 8) + b"\0\1\3" + u16(2) + u16(3) + u16(9)
    yield message(2, 9) + b"\2" + u16(9) + message(3, 9) + receive(3, 9) + receive(2, 9)
    yield receive(0, 8) + head(1, 1 << 40) + u16(9) + b"\1" + text("abcd") + u16(0)
    yield head(1, 0) + receive(1, 4)


def tcp_mesh():
    for wrong in range(8):
        yield u16(1) + bytes([wrong]) + text(b"GET / HTTP/1.1\r\n\r\n") + text(bytes(32)) + bytes([0]) + text("short")
    yield u16(3) + b"\2" + text(bytes(32)) + text("x") + b"\4" + text("n") + text(bytes(54)) + b"\5" + b"\6" + text(bytes(64))


def results():
    """A comparison of a linear network on two cores, some of its runs, and what it may be damaged to."""
    real = source("tests/fuzz/results.json")
    for plan in range(4):
        yield bytes([plan]) + real.encode()
    plain = json.loads(real)
    weak = {**plain, "settings": {**plain["settings"], "scaling": "weak"}, "runs": plain["runs"][:1]}
    for whole in (weak, {**plain, "model": None}):
        yield b"\0" + json.dumps(whole).encode()
    for place, value in (("machine", {**plain["machine"], "gpus": [[[]]]}), ("runs", []), ("runs", [{"devices": -1}]),
                         ("batch_sweep", [{"batch": 1.5, "step_us": True}]), ("model", {"fixed_us": -1})):
        yield b"\0" + json.dumps({**plain, place: value}).encode()


WORDS = {
    "results": sorted(set(re.findall(r'"[a-z_0-9]+"', source("tests/fuzz/results.json")))) +
               "null true false 1e300 -1 0 0.5 9223372036854775807 [[[[ {}".split(),
    "safetensors": '"dtype" "shape" "data_offsets" "__metadata__" F32 F64 I64 I32 U8 F16 BF16 "duet.sha256" [0,8] module.'.split(),
    "error_file": '"message" "extraInfo" "report" "consequence" "by_signal" "monotonic_ns" true false null'.split(),
    "rank_resolver": sorted(set(re.findall(r'"([A-Z_]{4,})"', source("ddp/launch/rank_resolver.cpp")))),
    "command_line": sorted(set(re.findall(r'"(-[-a-z,]+)"', source(
        "train/options/options.cpp", "train/options/launch_options.cpp", "train/options/training_options.cpp")))),
}
TARGETS = (safetensors, checkpoint, idx, image, store_wire, store_server, store_client, file_store, error_file, flight_record,
           rank_resolver, command_line, control_block, job_memory, tcp_mesh, tcp_receiver, results)


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)  # of targets that are gone
    for target in TARGETS:
        name = target.__name__
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        for number, seed in enumerate(target()):
            with open(os.path.join(folder, name, f"seed-{number}"), "wb") as file:
                file.write(seed)
        if name in WORDS:
            with open(os.path.join(folder, name + ".dict"), "w", encoding="utf-8") as file:
                for word in WORDS[name]:
                    file.write('"{}"\n'.format(word.replace('"', '\\"')))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
