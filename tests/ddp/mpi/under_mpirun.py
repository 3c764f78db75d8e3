#!/usr/bin/env python3
"""Runs ranks over MPI: tests/ddp/mpi/mpi_worker.cpp, and `duet train --backend mpi`, under mpirun.

    under_mpirun.py WORKER DUET

mpirun is $DUET_MPIRUN, else the one in PATH. Exits with 77, and says why, where there is none, or where duet was built
without MPI, which an empty WORKER says. The last line reads "N passed, N failed, N skipped".
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
# Containers often run as root, and on fewer cores than ranks.
FLAGS = ["--allow-run-as-root", "--oversubscribe"]
TRAIN = ["train", "--quiet", "--data", "synthetic", "--train-images", "333", "--test-images", "200", "--lr", "0.05",
         "--batch", "64", "--epochs", "1", "--mode", "ddp"]
# Of a launcher that started this test.
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


class Failure(Exception):
    pass


def expect(good, text, ran=None):
    if not good:
        raise Failure(text if ran is None else f"{text}; exit code {ran.returncode}, and it said:\n{ran.stdout}")


class Cases:
    def __init__(self, mpirun, worker, duet, folder):
        self.mpirun, self.worker, self.duet, self.folder = mpirun, worker, duet, folder
        self.mark = f"DUET_TEST_MARK={os.getpid()}"

    def run(self, command, limit=120, more=None):
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        # Open MPI keeps memory to the end of its processes. Ranks without an address meet in TMPDIR.
        environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        environment.update({"TMPDIR": self.folder, "UCX_VFS_ENABLE": "n", **(more or {})}, DUET_TEST_MARK=str(os.getpid()))
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=limit, check=False)

    def ranks(self, count, command, **more):
        return self.run([self.mpirun, *FLAGS, "-np", str(count), *command], **more)

    def leftover(self):
        """Processes of the jobs that are still there after five seconds."""
        for _ in range(50):
            there = [pid for pid in os.listdir("/proc") if pid.isdigit() and self.is_ours(pid)]
            if not there:
                return []
            time.sleep(0.1)
        return there

    def is_ours(self, pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self.mark.encode() in file.read().split(b"\0")
        except OSError:
            return False

    def good(self, scenario, count=4):
        ran = self.ranks(count, [self.worker, scenario])
        expect(ran.returncode == 0, f"{scenario} on {count} ranks", ran)

    def every_collective_and_reduction(self):
        for count in (2, 3, 4):
            self.good("collectives", count)

    def several_groups(self):
        self.good("groups")

    def long_messages_late_and_out_of_order(self):
        self.good("messages", 2)

    def a_wait_ends_at_its_deadline(self):
        ran = self.ranks(4, [self.worker, "late"])
        for text in ("rank 0: recv from rank 1 failed on rank 0: rank 1 sent nothing in time",
                     "rank 2: send to rank 3 failed on rank 2: rank 3 took nothing in time"):
            expect(text in ran.stdout, f"no line '{text}'", ran)
        expect(ran.returncode != 0, "mpirun takes ranks that have lost messages for good ones", ran)

    def a_wait_leaves_the_core_free(self):
        self.good("idle", 2)

    def a_program_that_uses_mpi_itself(self):
        self.good("program")
        ran = self.ranks(2, [self.worker, "single_threaded"])
        expect(ran.returncode != 0 and "expected MPI_THREAD_MULTIPLE" in ran.stdout, "MPI without threads", ran)

    def the_same_bits_as_over_memory_and_tcp(self):
        hashes = {}
        for backend in ("shm", "tcp", "mpi"):
            result = os.path.join(self.folder, backend)
            ran = self.ranks(4, [self.duet, *TRAIN, "--backend", backend, "--result", result])
            expect(ran.returncode == 0, f"duet train over {backend}", ran)
            with open(result, encoding="utf-8") as file:
                record = json.load(file)
            expect(record["backend"] == backend, f"it trained over {record['backend']}, expected {backend}")
            hashes[backend] = record["parameters_sha256"]
        expect(len(set(hashes.values())) == 1, f"parameters differ: {hashes}")

    def a_table_of_collectives(self):
        result = os.path.join(self.folder, "bench")
        ran = self.ranks(2, [self.duet, "bench", "all_reduce", "--backend", "tcp,mpi", "-e", "64K", "--json", result])
        expect(ran.returncode == 0, "duet bench", ran)
        with open(result, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        expect({row["backend"] for row in rows} == {"tcp", "mpi"}, f"rows over {[row['backend'] for row in rows]}")
        expect(all(row["wrong"] == 0 for row in rows), "wrong elements", ran)

    def a_rank_that_fails_ends_the_job(self):
        ran = self.ranks(4, [self.worker, "throwing"], limit=60)
        expect(ran.returncode != 0 and "rank 1: label 10 of image 7" in ran.stdout, "a rank's exception", ran)
        expect(self.leftover() == [], "processes are left")

    def a_rank_that_is_killed_ends_the_job(self):
        begin = time.monotonic()
        ran = self.ranks(4, [self.worker, "dying"], limit=60)
        expect(ran.returncode != 0, "a killed rank", ran)
        expect(time.monotonic() - begin < 30, "the job went on after a rank was killed", ran)
        expect(self.leftover() == [], "processes are left")

    def wrong_use(self):
        needs = "--backend mpi is for ranks that mpirun or srun has started"
        ran = self.run([self.duet, *TRAIN, "--devices", "2", "--backend", "mpi"])
        expect(ran.returncode == 2 and needs in ran.stdout, "duet train without mpirun", ran)
        ran = self.run([self.duet, "bench", "all_reduce", "--backend", "mpi"])
        expect(ran.returncode == 2 and needs in ran.stdout, "duet bench without mpirun", ran)
        ran = self.run([self.duet, "launch", "-n", "2", self.worker, "collectives"])
        expect(ran.returncode != 0 and "no MPI launcher has started this process: environment variable PMIX_RANK" in
               ran.stdout, "ranks of duet launch", ran)
        ran = self.ranks(1, [self.duet, "launch", "-n", "2", self.worker, "collectives"])
        expect(ran.returncode != 0 and "backend mpi: environment variable OMPI_COMM_WORLD_" in ran.stdout,
               "ranks of duet launch under mpirun", ran)
        ran = self.ranks(1, [self.worker, "other_size"])
        expect(ran.returncode != 0 and "OMPI_COMM_WORLD_SIZE is 1, expected 3" in ran.stdout, "a group of another size", ran)
        ran = self.ranks(2, [self.worker, "groups"], more={"DUET_PORT_RANGE": "30000-30010"})
        expect(ran.returncode != 0 and "backend mpi takes the ports of MPI's own settings" in ran.stdout, "ports", ran)


def main(worker, duet):
    mpirun = os.environ.get("DUET_MPIRUN") or shutil.which("mpirun")
    if not worker or mpirun is None:
        print("skipped: " + ("MPI was not found by the build" if not worker else "mpirun is not in PATH"))
        return SKIPPED
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="duet-") as folder:
        cases = Cases(mpirun, worker, duet, folder)
        for case in (cases.every_collective_and_reduction, cases.several_groups,
                     cases.long_messages_late_and_out_of_order, cases.a_wait_ends_at_its_deadline,
                     cases.a_wait_leaves_the_core_free, cases.a_program_that_uses_mpi_itself,
                     cases.the_same_bits_as_over_memory_and_tcp, cases.a_table_of_collectives,
                     cases.a_rank_that_fails_ends_the_job, cases.a_rank_that_is_killed_ends_the_job, cases.wrong_use):
            title = case.__name__.replace("_", " ")
            try:
                case()
                passed += 1
            except (Failure, subprocess.TimeoutExpired) as failure:
                failed += 1
                print(f"failed: {title}: {failure}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
