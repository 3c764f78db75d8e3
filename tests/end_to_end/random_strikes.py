"""Random strikes on ranks, launchers, guards and checkpoint writers of `duet launch`; see main().

fault_campaign.py --strikes N runs it.
"""
import json
import os
import random
import signal
import subprocess
import tempfile
import time

HANG_S = 120  # for a training of a second, on a machine of any load
GONE_S = 20
TRAINING = ("--mode ddp --data synthetic --train-images 333 --test-images 200 --batch 64 --epochs 3").split()
TARGETS = ("rank", "rank", "rank", "launcher", "guard", "writer", "point")
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP)
POINTS = {"init": 1, "forward": 18, "backward": 18, "all_reduce": 18, "update": 18, "end": 1}
EPOCHS = 3


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def processes_with(text):
    """Numbers of the processes, zombies excepted, in whose command line or environment `text` occurs."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid() and text.encode() in read(f"/proc/{pid}/cmdline") + read(f"/proc/{pid}/environ"):
            found.append(int(pid))
    return found


def parent_of(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


class Run:
    """One launch with, at most, one strike."""

    def __init__(self, program, folder, ranks, restarts, fault=""):
        os.makedirs(folder + "/tmp")
        self.folder, self.hung, self.struck = folder, False, False
        self.errors = open(folder + "/stderr", "w+", encoding="utf-8", errors="replace")
        command = [program, "launch", "-n", str(ranks), "--max-restarts", str(restarts), "--stop-limit", "0.5",
                   "--timeout", "60", "--", program, "train", *TRAINING, "--result", folder + "/result",
                   "--checkpoint", folder + "/kept"]
        environment = {**os.environ, "DUET_FAULT": fault, "TMPDIR": folder + "/tmp"}
        self.began = time.monotonic()
        self.child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=self.errors)

    def pid_of(self, target, rank):
        """None while there is no such process."""
        if target == "launcher":
            return self.child.pid
        for pid in processes_with(self.folder):
            if parent_of(pid) != self.child.pid:
                continue
            guard = read(f"/proc/{pid}/comm") == b"duet-guard\n"
            is_rank = f"\0RANK={rank}\0".encode() in read(f"/proc/{pid}/environ")
            if guard if target == "guard" else is_rank and not guard:
                return pid
        return None

    def strike(self, target, rank, which, after_s):
        time.sleep(after_s)
        while self.child.poll() is None and time.monotonic() < self.began + HANG_S:
            pid = self.pid_of(target, rank)
            if pid is None:
                time.sleep(0.002)
                continue
            try:
                os.kill(pid, which)
            except ProcessLookupError:
                continue
            self.struck = True
            if which == signal.SIGSTOP and target in ("launcher", "guard"):
                time.sleep(0.3)  # no one else would let it go on
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            return

    def wait(self):
        try:
            self.child.wait(max(1.0, self.began + HANG_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.hung = True
            self.child.kill()
            self.child.wait()
        self.errors.seek(0)
        self.text = self.errors.read()
        self.errors.close()
        self.struck = self.struck or " is struck at " in self.text
        return self.child.returncode

    def digest(self):
        text = read(self.folder + "/result")
        return json.loads(text).get("parameters_sha256", "") if text else ""

    def orphans(self):
        """Ends and counts what is left a while after the launcher's end."""
        deadline = time.monotonic() + GONE_S
        while (left := processes_with(self.folder)) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return len(left)


def is_named(text, code, target, rank, which):
    """Whether the end says what was struck, or by which signal the job was ended."""
    if target == "launcher":
        return code == -which or (which == signal.SIGTERM and "duet: ended by signal 15 (SIGTERM)" in text)
    if which == signal.SIGSTOP:
        return f"duet: rank {rank} was stopped by a signal for more than 500 ms" in text
    if which == signal.SIGTERM and f"duet: rank {rank} received signal 15 (SIGTERM)" in text:
        return True
    return f"duet: rank {rank} was killed by signal {int(which)} (" in text


def main(program, strikes, seed):
    """Each strike is one signal (KILL, SEGV, TERM, STOP) to a rank, the launcher or the guard at a random instant of the
    job, or to a rank at a random passing of a named point, or to the rank that writes checkpoints between writing and
    renaming one; with 2 to 4 ranks, and with or without a restart. Counts hangs (no end within HANG_S), orphans
    (processes left GONE_S after the launcher's end), unnamed (a failure whose report does not name the struck rank and
    signal), leftovers (files in TMPDIR or /dev/shm) and wrong bits (a job that ended well, with other parameters than an
    undisturbed one)."""
    draw = random.Random(seed)
    count = {"strikes": 0, "hangs": 0, "orphans": 0, "unnamed": 0, "leftovers": 0, "wrong bits": 0}
    ended_well = failed = late = number = 0
    with tempfile.TemporaryDirectory() as scratch:
        expected, took = {}, {}
        for ranks in (2, 3, 4):
            whole = Run(program, f"{scratch}/whole{ranks}", ranks, 0)
            assert whole.wait() == 0, whole.text
            expected[ranks], took[ranks] = whole.digest(), time.monotonic() - whole.began
        shared = set(os.listdir("/dev/shm"))
        while count["strikes"] < strikes:
            number += 1
            ranks, restarts = draw.choice((2, 3, 4)), draw.choice((0, 1))
            target, which, rank = draw.choice(TARGETS), draw.choice(SIGNALS), draw.randrange(ranks)
            fault, after_s = "", draw.uniform(0, took[ranks])
            if target == "writer":
                rank, fault = 0, f"rename:0:{draw.randint(1, EPOCHS)}:{int(which)}"
            elif target == "point":
                point = draw.choice(sorted(POINTS))
                fault = f"{point}:{rank}:{draw.randint(1, POINTS[point])}:{int(which)}"
            run = Run(program, f"{scratch}/run{number:05d}-", ranks, restarts, fault)
            if not fault:
                run.strike(target, rank, which, after_s)
            code = run.wait()
            if not run.struck:  # it had ended before
                late += 1
                continue
            count["strikes"] += 1
            ended_well += code == 0
            failed += code != 0
            wrong = {"hangs": run.hung, "orphans": run.orphans(),
                     "unnamed": not run.hung and code != 0 and not is_named(run.text, code, target, rank, which),
                     "leftovers": len(os.listdir(run.folder + "/tmp")) + len(set(os.listdir("/dev/shm")) - shared),
                     "wrong bits": code == 0 and run.digest() != expected[ranks]}
            shared = set(os.listdir("/dev/shm"))
            for name, bad in wrong.items():
                count[name] += bad
            if any(wrong.values()):
                what = f"{which.name} to {target} {rank} of {ranks} {fault or f'after {after_s:.3f} s'}"
                print(f"{what}, {restarts} restarts: exit code {code}, {wrong}\n{run.text}", flush=True)
    print(f"{ended_well} jobs ended well, {failed} failed; {late} draws came after the job's end and do not count")
    print(f"seed {seed}: " + ", ".join(f"{name} {number}" for name, number in count.items()))
    return 0 if sum(count.values()) == count["strikes"] else 1
