#!/usr/bin/env python3
"""Ranks of elastic jobs are struck, and the jobs end with the bits of undisturbed ones.

    strikes.py DUET PROGRAM GAN IMAGENET MAKE_IMAGE_FOLDER     each fault point with ranks, signals and networks in turn, of
                                                               which a quarter is drawn (tests/support/drawn.py), loops that
                                                               are refused, and jobs that end after a failure
    strikes.py ... --cells                     each fault point with each rank and signal
    strikes.py ... --libtorch PROGRAM TRAIN_ELASTIC            only the networks of LibTorch
    strikes.py ... --random N [--seed S]       N jobs, struck at random times; prints one line for each failure
    strikes.py ... --costs N [--seed S]        N rounds that time each way to survive a killed rank; prints a table

IMAGENET trains on a folder that MAKE_IMAGE_FOLDER makes, and duet train on the network that LibTorch's PROGRAM writes.

A job in which all ranks that had the state of the training were struck may end with an error that says so; so may one
in which the same rank was struck twice within a step.
"""
import argparse
import glob
import hashlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from drawn import is_drawn, note

# May go on with fewer ranks.
ANY_NUMBER = ("cnn", "synchronised", "trained_cnn", "trained_linear", "trained_directly", "imagenet", "ended", "leaves",
              "leaves_directly")
NETWORKS = ("cnn", "plain", "synchronised", "accumulated")
OWN = ("gan", "own_batches", "own_repeated")  # loops with values or batches of their own
TRAINED = {"trained_cnn": ("--model", "simple_cnn", "--optimizer", "adamw"),  # by duet train
           "trained_linear": ("--model", "linear", "--loader-workers", "1"),
           "trained_directly": ("--model", "linear", "--optimizer", "adam"),  # without duet launch
           "trained_script": ("--input", "1x28x28", "--optimizer", "adam")}
OF_TRAIN = ("trained_cnn", "trained_linear", "trained_directly")
LIBTORCH = ("trained_script", "example", "sgd", "adam", "adamw", "rmsprop", "adagrad", "blocks", "two")
IMAGENET = ("-a", "resnet18", "--stem", "cifar", "--width", "4", "--image-size", "16", "-j", "2", "--seed", "1", "--sync-bn",
            "-b", "24", "--epochs", "4", "--lr", "0.03")
LOST_ALL = ("no rank is left that has the state of the training", "all ranks had ended their training")
REFUSED = {"crossing": "gradients of a pass over the loader are accumulated in the next one",
           "leftover": "a unit of an elastic job before the step of a batch that has gone forward",
           "two_steps": "a second step of an optimizer for one batch",
           "two_forwards": "a second forward in training mode of one batch",
           "breaks": "a pass over the loader has ended within a step that an elastic job is to do again",
           "breaks_last": "ended with exit code 0: a pass over the loader has ended within a step",
           "within": "a unit of an elastic job within a pass over the loader",
           "shared": "a process that replaces a lost one calls a collective outside of steps and units",
           "whole_batches": "another batch goes forward without a loader that ranks share: an elastic job redoes steps of "
                            "such a loop where it is 'do { ... } while (net.redo());'",
           "outside": "the state 'epochs' has changed outside of steps and units",
           "no_step": "redo() before the step of an optimizer",
           "two_loops": "redo() of an elastic job is for loops without a loader that ranks share",
           "phases": "SGD is made in or after a step or unit of an elastic job, expected before the first one",
           "counted": "the learning rate of rank 1 is 0.01, expected 0.00",
           "ends_within": "a schedule has ended within a step or unit of an elastic job",
           "stops": "rank 1 ended with exit code 0: its training ended after step 5, but rank 0 continues",
           "exits": "rank 1 ended with exit code 0: it left the training after step 5",
           "restored": "from values of elastic::state(); the first that differs is conv1.weight"}
REFUSED_WITH_FEWER = {"shared_use": "square.weight has several uses in a step",
                      "own_rows": "the loss was divided by this rank's own rows",
                      "torch_rule": "GradientRule::torch divides by their number",
                      "averages": "average_gradients divides by the number of ranks, but the elastic job may continue with fewer",
                      "nested": "a DataParallel within DistributedDataParallel has other bits",
                      "beside": ", 2] has as many rows as the batch here, but not its stamp",
                      "samples_second": "linear: the gradient of square.weight is a sum over an input [1, ",
                      "accumulated": "no_sync()", "plain": "batch norm has the statistics of rank 0's rows"}
REFUSED_OF_LIBTORCH = {"unkept": " has changed in a step, but is of no optimizer that an elastic job keeps",
                       "lbfgs": "the state 'optimizer' is of an optimizer whose state is not known",
                       "before": "a batch goes forward before is_done()"}
# Steps have two buckets each, and passes nine steps.
STRUCK = {"breaks": "all_reduce:1:9:9", "breaks_last": "all_reduce:1:9:9", "shared": "all_reduce:1:21:9",
          "restored": "all_reduce:1:21:9",
          "absent": "all_reduce:1:9:9", "counted": "all_reduce:1:9:9", "fails": "all_reduce:1:9:9"}
# Fault points, and how often a rank has passed them when it is struck.
IN_STEPS = (("all_reduce", 1), ("all_reduce", 2), ("all_reduce", 15), ("collective", 5), ("collective", 15), ("collective", 25),
            ("init", 1))
IN_TRAININGS = (("input", 9), ("forward", 1), ("forward", 12), ("backward", 10), ("update", 20), ("commit", 8), ("evaluation", 1),
                ("checkpoint", 1), ("checkpoint", 4), ("end", 1))
# The sums 21 to 24 of the GAN are those of one step: two of the discriminator's losses, and two of the generator's.
IN_OWN_LOOPS = (("init", 1), ("all_reduce", 2), ("all_reduce", 22), ("all_reduce", 23), ("all_reduce", 24), ("collective", 41),
                ("commit", 9), ("commit", 12))
RANKS = (0, 1, 2)
# Of a second rank, or of the new process, during the recovery from the loss of rank 1.
IN_RECOVERY = [(point, rank) for point, ranks in (("joining", (1,)), ("arriving", (0, 2)), ("agreement", RANKS), ("state", RANKS))
               for rank in ranks]
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)
KILLED_TWICE = "has killed rank {} twice: its rows of the batch may be the cause"
# What is said of the first loss, and of the end.
ENDED = {("kills", "10"): ("rank 1 was killed by signal 9 (SIGKILL) after step 5; another process replaces it",
                           "rank 1 was killed by signal 9 (SIGKILL); step 6 " + KILLED_TWICE.format(1),
                           "rank 1 was in backward of step 6"),
         ("absent", "0.5"): ("; another process replaces it",
                             "rank 1's new process has not joined within 0.5 s after the last failure"),
         ("fails", "10"): ("rank 1 is replaced after", "step 12 fails on rank 0",
                           "ranks 1, 2 were in backward of step 13, waiting for rank 0 in all_reduce")}
STOPPED = "was stopped by a signal for more than 500 ms"
GOES_ON = r"rank \d+ is (replaced|left out) after \d+ ms"
LIMIT = 60  # seconds for a job
# The jobs of --costs: how each survives the loss of one of its two ranks.
SURVIVED = {"undisturbed": (), "new process": ("--elastic",), "spare process": ("--elastic", "--spares", "1"),
            "fewer ranks": ("--elastic", "--min-ranks", "1"), "restart": ("--max-restarts", "1")}
COST_STEPS, COST_EVERY = 400, 50  # steps of a job, and from one checkpoint to the next


def command(options, network, ranks, folder=None, replace_timeout="60", least=0, spares=0, backend="auto"):
    """The program, or a training whose files are in the folder."""
    elastic = ["--elastic", "--max-failures", "50", "--stop-limit", "0.5", "--replace-timeout", replace_timeout,
               "--min-ranks", str(least), "--spares", str(spares)]
    launch = [options.duet, "launch", "-n", str(ranks), *elastic, "--"]
    if network == "gan":
        return launch + [options.gan, "ddp"]
    if network == "imagenet":
        return launch + [options.imagenet, options.images, *IMAGENET, "--checkpoint", f"{folder}/checkpoints"]
    if network == "example":
        return launch + [options.libtorch[1], "synthetic", "640"]
    if options.libtorch and network not in TRAINED:
        return launch + [options.libtorch[0], network]
    if network not in TRAINED:
        return launch + [options.program, network]
    train = [options.duet, "train", "--mode", "ddp", "--data", "synthetic", "--train-images", "240", "--test-images",
             "60", "--backend", backend, "--batch", "24", "--epochs", "3", "--blocks", "8", *TRAINED[network],
             *(("--model", options.script) if network == "trained_script" else ()),
             "--result", f"{folder}/result.json", "--fingerprints", f"{folder}/fingerprints",
             "--checkpoint", f"{folder}/checkpoints", "--checkpoint-every", "7"]
    return train + ["--devices", str(ranks), *elastic] if network == "trained_directly" else launch + train


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_of_file(name):
    with open(name, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def state_of(network, output, folder):
    """What must not depend on losses."""
    if network not in TRAINED:
        lines = {line for line in output.splitlines() if "sha256" in line}  # of all ranks that are there
        files = sorted(glob.glob(f"{folder}/checkpoints/*"))
        lines |= {line for line in output.splitlines() if line.startswith(" * ")}
        lines |= {f"{os.path.basename(name)}: {sha256_of_file(name)}" for name in files}
        return " and ".join(sorted(lines)) or "no hash"
    try:
        with open(f"{folder}/result.json", encoding="ascii") as file:
            result = json.load(file)
        with open(f"{folder}/fingerprints", encoding="ascii") as file:
            steps = file.read()
    except OSError as error:
        return str(error)
    names = sorted(name for name in os.listdir(f"{folder}/checkpoints") if not name.startswith("."))
    losses = [*result["train_loss"], *result["test_accuracy"]]
    return f"sha256 {result['parameters_sha256']}, of losses and steps {sha256(f'{losses}{steps}')}, {names}"


class Job:
    def __init__(self, arguments, **environment):
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "OMP_NUM_THREADS": "1", **environment})

    def ranks(self):
        """Process numbers by rank."""
        found = {}
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as file:
                children = file.read().split()
        except OSError:
            return found
        for child in children:
            try:
                with open(f"/proc/{child}/environ", "rb") as file:
                    values = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
            except OSError:
                continue
            if b"DUET_ELASTIC_FILE" in values:
                found[int(values[b"RANK"])] = int(child)
        return found

    def end(self):
        """What is wrong with the end, if anything, its output, and its errors."""
        try:
            output, errors = self.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            output, errors = self.process.communicate()
            return f"still ran after {LIMIT} s", output, errors
        return f"exit code {self.process.returncode}" if self.process.returncode else "", output, errors


def resume(job, rank):
    """Lets a rank go on a moment after it has been stopped."""
    end = time.monotonic() + LIMIT
    while job.process.poll() is None and time.monotonic() < end:
        try:
            process = job.ranks().get(rank, 0)
            with open(f"/proc/{process}/stat", encoding="ascii") as file:
                stopped = file.read().rsplit(")", 1)[1].split()[0] == "T"
        except OSError:
            stopped = False
        time.sleep(0.25 if stopped else 0.01)
        if stopped:
            os.kill(process, signal.SIGCONT)
            break
    return []


class Campaign:
    """Jobs with faults, of which one in `parts` is drawn, and how many of them end as they should not."""

    def __init__(self, options, parts, whole):
        self.options, self.parts, self.whole = options, parts, whole
        self.expected = {}
        self.cells = self.jobs = self.failures = self.skipped = self.lost = self.strikes = 0

    def is_drawn(self):
        self.cells += 1
        return self.whole or is_drawn(self.cells, self.parts)

    def is_lost(self, wrong, ranks, errors):
        """Whether a job has ended with an error that these struck ranks explain; it is counted then."""
        twice = {KILLED_TWICE.format(rank) for rank in ranks if ranks.count(rank) > 1}
        lost = bool(wrong) and any(text in errors for text in (*LOST_ALL, *twice))
        self.lost += lost
        self.jobs += lost
        return lost

    def report(self, what, wrong, errors):
        self.jobs += 1
        if wrong:
            self.failures += 1
            print(f"{what}: {wrong}\n{errors[-3000:]}", flush=True)

    def require_refused(self, what, text, job):
        wrong, _, errors = job.end()
        refused = wrong in ("exit code 1", "exit code 2") and text in errors
        self.report(what, "" if refused else f"{wrong or 'no error'}, expected: {text}", errors)

    def finish(self):
        """Prints the counts, and returns the exit code."""
        print(note())
        print(f"{self.jobs - self.failures} passed, {self.failures} failed, {self.skipped} skipped")
        return 1 if self.failures else 0


class Strikes(Campaign):
    """Jobs of one launcher. Those on other devices override what a job is, and how its state is read and compared."""

    command = staticmethod(command)
    state_of = staticmethod(state_of)
    default_backend = "auto"

    def job(self, network, ranks, backend, strike=lambda job: [], least=0, spares=0, **environment):
        """What is wrong with a job's end, its state, its errors, and what strike(job) returns."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = self.command(self.options, network, ranks, folder, least=least, spares=spares, backend=backend)
            job = Job(arguments, BACKEND=backend, VALUES=f"{folder}/values", **environment)
            struck = strike(job)
            wrong, output, errors = job.end()
            return wrong, self.state_of(network, output, folder), errors, struck

    def undisturbed(self, network, ranks, backend):
        """The job whose state is expected: its network, ranks and backend."""
        alone = network in ("plain", "accumulated", "unstamped", "undone", *OWN[1:], *LIBTORCH)
        return network, ranks if alone else 3, "auto"

    def wrong_with(self, state, expected, errors, faults, **_):
        """What is wrong with a job that has ended well, if anything."""
        again = "all ranks start again" in errors  # those that were to replace lost ones, too
        told = "process replaces it" in errors or "; the others continue" in errors
        if state != expected:
            return f"{state}, expected {expected}"
        if told and not again and not re.search(GOES_ON, errors):
            return "no word of how the job goes on"
        if faults and faults[-1].endswith(f":{int(signal.SIGSTOP)}") and STOPPED not in errors:
            return f"not: {STOPPED}"
        return ""

    def run(self, network, fault="", ranks=3, least=0, spares=0, backend="", strike=lambda job: [], **environment):
        """strike(job) returns the ranks that it has struck, and by what."""
        if not self.is_drawn():
            return
        backend = backend or self.default_backend
        key = self.undisturbed(network, ranks, backend)
        if key not in self.expected:
            wrong, self.expected[key], errors, _ = self.job(*key)
            if wrong or self.expected[key] is None:
                sys.exit(f"undisturbed, {key}: {wrong}\n{errors}")
        wrong, state, errors, struck = self.job(network, ranks, backend, strike, least, spares, DUET_FAULT=fault, **environment)
        if self.is_lost(wrong, [rank for rank, _ in struck], errors):
            return
        faults = fault.split(",") if fault else []
        if not wrong and errors.count("is struck at") < len(faults):
            wrong = "was not struck"
        wrong = wrong or self.wrong_with(state, self.expected[key], errors, faults, ranks=ranks, least=least, backend=backend,
                                         environment=environment)
        what = f"{network}, {ranks} ranks, {least} at least, {spares} spare, {backend}, DUET_FAULT={fault}, {environment}"
        self.report(f"{what}, struck: {struck}", wrong, errors)

    def run_random(self, count, seed):
        for number in range(seed, seed + count):
            draw = random.Random(number)
            job, seconds = self.drawn_job(draw, number)

            def strike(job):
                time.sleep(draw.uniform(*seconds))
                done = []
                for _ in range(draw.choice((1, 1, 2, 3))):
                    found = job.ranks()
                    if found:
                        rank = draw.choice(sorted(found))
                        sent = draw.choice((signal.SIGKILL,) * 3 + (signal.SIGSEGV, signal.SIGSTOP))
                        try:
                            os.kill(found[rank], sent)
                            done.append((rank, sent.name))
                            self.strikes += 1
                        except ProcessLookupError:
                            pass
                    time.sleep(draw.choice((0, 0.01, 0.05, 0.2)))
                return done

            failures = self.failures
            self.run(**job, strike=strike)
            if self.failures > failures:
                print(f"of --seed {number}", flush=True)
        print(f"{self.strikes} strikes; {self.lost} jobs of which no rank was left with the state")

    def drawn_job(self, draw, _):
        """Arguments of run(), and the least and most seconds to the first strike."""
        network, ranks = draw.choice(self.options.networks), draw.choice((2, 3, 4))
        least = draw.randrange(ranks) if network in ANY_NUMBER else 0
        spares = draw.choice((0, 0, 1, 2)) if network not in (*OWN[1:], *LIBTORCH[1:]) else 0
        backend = draw.choice(("auto", "tcp")) if network in NETWORKS + tuple(TRAINED) + OWN[1:] else "auto"
        return {"network": network, "ranks": ranks, "least": least, "spares": spares, "backend": backend,
                "DUET_DELAY": f"all_reduce:*:{draw.choice((0, 1000, 4000))}"}, (0.02, 0.6)

    def run_points(self):
        # Each pair of (point, rank), (point, network), (rank, signal)... is met.
        for i, ((point, times), rank) in enumerate(itertools.product(IN_STEPS, RANKS)):
            for j in range(2):
                network, number = NETWORKS[(i + j) % 4], SIGNALS[(i // 3 + j) % 3]
                self.run(network, f"{point}:{rank}:{times}:{int(number)}")
        self.run("unstamped", "all_reduce:1:9:9")  # dropout counts its draws where batches have no stamp
        self.run("undone", "all_reduce:1:15:9")  # the void step has a second backward, without a sum
        for i, fault in enumerate(("commit:2:30:9", "collective:1:62:9", "collective:0:63:9", "commit:0:31:9")):
            self.run("ended", fault, least=i % 2)
        # In the last and first step of passes between which parameters are written, and in the unit before.
        for i, fault in enumerate(("commit:2:9:9", "all_reduce:1:18:9", "collective:0:20:9", "all_reduce:0:20:9", "all_reduce:2:37:9")):
            self.run("written", fault, least=i % 2)
        # In the last step before a pass is left, the unit behind it, and the first steps of the next pass.
        points = itertools.product(("leaves", "leaves_directly"), ("all_reduce:1:9:9", "commit:2:5:9", "all_reduce:0:11:9"))
        for i, (network, fault) in enumerate(points):
            self.run(network, fault, least=i % 2)
        # In the last, small batch of a pass, whose void step leaves a rank with the sums of its one row.
        self.run("synchronised", "collective:0:227:9")

        # Rank 2 alone completes step 7, behind which is a checkpoint, as rank 1 dies and rank 0 sees it in the last sum.
        self.run("trained_linear", "posting:2:16:19,posted:1:16:9", strike=lambda job: resume(job, 2))

        for i, ((point, times), rank) in enumerate(itertools.product(IN_TRAININGS, RANKS)):
            network, number = OF_TRAIN[(i // 3 + rank) % 3], SIGNALS[(i + i // 3) % 3]
            self.run(network, f"{point}:{rank}:{times}:{int(number)}")

        for i, ((point, times), rank) in enumerate(itertools.product(IN_OWN_LOOPS, RANKS)):
            network, number = OWN[(i + i // 3) % 3], SIGNALS[i % 3]
            self.run(network, f"{point}:{rank}:{times}:{int(number)}")

        for i, (point, rank) in enumerate(IN_RECOVERY):
            self.run_in_recovery(point, rank, SIGNALS[i % 3], (NETWORKS + OF_TRAIN + OWN)[i % 10])

    def run_in_recovery(self, point, rank, number, network):
        self.run(network, f"all_reduce:1:9:9,{point}:{rank}:1:{int(number)}:{int(rank == 1)}")

    def run_cells(self):
        """Each fault point, rank and signal, with networks in turn."""
        for points, networks in ((IN_STEPS, NETWORKS), (IN_TRAININGS, OF_TRAIN), (IN_OWN_LOOPS, OWN)):
            for i, ((point, times), rank, number) in enumerate(itertools.product(points, RANKS, SIGNALS)):
                network, fault = networks[(i + i // 9) % len(networks)], f"{point}:{rank}:{times}:{int(number)}"
                self.run(network, fault)
        for i, ((point, rank), number) in enumerate(itertools.product(IN_RECOVERY, SIGNALS)):
            self.run_in_recovery(point, rank, number, (NETWORKS + OF_TRAIN + OWN)[i % 10])

    def run_with_fewer(self):
        """The others go on after a loss; the lost rank joins them again, or is struck before it has."""
        points = [("all_reduce", 9), ("collective", 25), ("input", 9), ("forward", 12), ("backward", 10), ("commit", 8),
                  ("evaluation", 1), ("checkpoint", 1)]
        own = ("all_reduce", "collective")
        for i, ((point, times), rank) in enumerate(itertools.product(points, (0, 1, 2))):
            network = ANY_NUMBER[i % 2] if point in own else ANY_NUMBER[2 + i % 3]
            fault = f"{point}:{rank}:{times}:{int((signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)[(i + i // 3) % 3])}"
            self.run(network, fault, least=1 + i % 2)
        for i, (point, rank) in enumerate((("joining", 1), ("arriving", 0), ("agreement", 1), ("agreement", 2), ("state", 0),
                                           ("state", 1), ("all_reduce", 2))):
            network, times = ANY_NUMBER[i % 2], 20 if point == "all_reduce" else 1
            fault = f"all_reduce:1:9:9,{point}:{rank}:{times}:9:{int(rank == 1)}"
            self.run(network, fault, least=1)

    def run_with_spares(self):
        points = [("all_reduce", 15), ("collective", 25), ("forward", 12), ("update", 20), ("checkpoint", 1), ("end", 1)]
        for i, ((point, times), rank) in enumerate(itertools.product(points, (0, 1, 2))):
            network = NETWORKS[i % 4] if point in ("all_reduce", "collective") else OF_TRAIN[(i // 3 + rank) % 3]
            fault = f"{point}:{rank}:{times}:{int((signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)[(i + i // 3) % 3])}"
            self.run(network, fault, spares=1)
        # Its RANK is that of the last rank.
        for i, (point, replacement) in enumerate((("joining", 1), ("agreement", 1), ("state", 1), ("init", 1))):
            fault = f"all_reduce:1:25:9,{point}:2:1:9:{replacement}"
            self.run(NETWORKS[i % 4], fault, spares=1 + i % 2)

    def run_over_tcp(self):
        points = [("all_reduce", 15), ("collective", 25), ("arriving", 1), ("agreement", 1), ("state", 1)]
        for i, ((point, times), rank) in enumerate(itertools.product(points, (0, 2))):
            network = NETWORKS[i % 4] if i % 2 else ANY_NUMBER[i % 3]
            fault = f"{point}:{rank}:{times}:{int((signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)[i % 3])}"
            first = "all_reduce:1:9:9," if times == 1 else ""
            least = (i % 2 == 0) * (1 + i // 2 % 2)
            self.run(network, first + fault, least=least, spares=int(i % 3 == 2), backend="tcp")

    def run_imagenet(self):
        """In steps, also behind the best epoch, in an evaluation, and before a checkpoint takes its name."""
        points = [("all_reduce:1:15", 0, 0), ("rename:0:3", 0, 0), ("collective:2:226", 0, 0), ("commit:0:20", 0, 0),
                  ("rename:0:5", 1, 0), ("commit:1:13", 0, 1)]
        for i, (point, least, spares) in enumerate(points):
            self.run("imagenet", f"{point}:{int(SIGNALS[i % 2])}", least=least, spares=spares)

    def run_libtorch(self):
        points = [("update:0:12", "trained_script"), ("forward:1:22", "trained_script"), ("all_reduce:1:8", "example"),
                  ("commit:0:10", "example"), ("all_reduce:0:12", "sgd"), ("collective:2:30", "adam"),
                  ("all_reduce:2:10", "blocks"), ("all_reduce:0:13", "two")]
        for i, (point, network) in enumerate(points):
            self.run(network, f"{point}:{int(SIGNALS[i % 2])}")
        self.refuse(REFUSED_OF_LIBTORCH)
        with tempfile.TemporaryDirectory() as folder:
            for network, text in (("trained_script", "LibTorch's sums depend on how many rows a rank has"),
                                  ("sgd", "its loop cuts batches for the ranks that it begins with")):
                self.require_refused(network, text, Job(command(self.options, network, 2, folder, least=1)))

    def refuse(self, loops, ranks=2, least=0):
        for loop, text in loops.items():
            # The others are in the step by then, so that it is void.
            late = {"DUET_DELAY": "all_reduce:1:20000"} if loop in STRUCK else {}
            job = Job(command(self.options, loop, ranks, least=least), DUET_FAULT=STRUCK.get(loop, ""), **late)
            self.require_refused(loop, text, job)

    def refuse_launcher(self):
        """What only a launcher can follow, of a rank that another one has started."""
        train = [self.options.duet, "train", "--mode", "ddp", "--data", "synthetic", "--train-images", "240", "--elastic"]
        for flags, more, text in (((), (), "a launcher that does not replace ranks has started this one"),
                                  (("--elastic",), ("--spares", "1"), "--spares is for the launcher")):
            job = Job([self.options.duet, "launch", "-n", "2", *flags, "--", *train, *more])
            self.require_refused(f"below duet launch {flags}", text, job)

    def run_ended(self):
        for (loop, timeout), texts in ENDED.items():
            job = Job(command(self.options, loop, 3 if loop == "fails" else 2, replace_timeout=timeout),
                      DUET_FAULT=STRUCK.get(loop, ""))
            wrong, _, errors = job.end()
            ended = wrong == "exit code 1" and all(text in errors for text in texts)
            self.report(loop, "" if ended else f"{wrong or 'no error'}, expected: {texts}", errors)

    def timed(self, way, fault):
        """Returns how many seconds a job takes, and its record."""
        train = [self.options.duet, "train", "--mode", "ddp", "--data", "synthetic", "--batch", "128", "--train-images",
                 str(128 * COST_STEPS), "--test-images", "100", "--epochs", "1", "--quiet"]
        with tempfile.TemporaryDirectory() as folder:
            if way == "restart":
                train += ["--checkpoint", f"{folder}/checkpoints", "--checkpoint-every", str(COST_EVERY)]
            start = time.monotonic()
            job = Job([self.options.duet, "launch", "-n", "2", *SURVIVED[way], "--", *train, "--result", f"{folder}/result.json"],
                      DUET_FAULT=fault if way != "undisturbed" else "")
            wrong, _, errors = job.end()
            seconds = time.monotonic() - start
            if wrong or ("is struck at" in errors) != (way != "undisturbed"):
                sys.exit(f"{way}, DUET_FAULT={fault}: {wrong or 'was not struck'}\n{errors}")
            with open(f"{folder}/result.json", encoding="ascii") as file:
                return seconds, json.load(file)

    def run_costs(self, rounds, seed):
        """Kills a rank in the same step of all jobs of a round, between forward and backward, and prints a table."""
        rows = {way: [] for way in SURVIVED}  # seconds, seconds more than undisturbed, seconds of recovery
        for number in range(seed, seed + rounds):
            draw = random.Random(number)
            fault = f"backward:{draw.randrange(2)}:{draw.randint(2, COST_STEPS)}:9"
            for way, row in rows.items():
                seconds, result = self.timed(way, fault)
                if way == "undisturbed":
                    whole, expected = seconds, result["parameters_sha256"]
                row.append((seconds, seconds - whole, *(lost["recovery_s"] for lost in result["lost_ranks"])))
                wrong = "other parameters than undisturbed" if result["parameters_sha256"] != expected else ""
                self.report(f"{way}, DUET_FAULT={fault}", wrong, "")
        print(f"{rounds} rounds of {COST_STEPS} steps; restarts from a checkpoint every {COST_EVERY} steps; seconds:")
        print(f"{'':13}{'median':>10}{'cost':>10}{'worst':>10}{'recovery':>10}{'worst':>10}")
        for way, row in rows.items():
            times, *lost = zip(*row)
            numbers = [statistics.median(times), *(of(values) for values in lost for of in (statistics.median, max))]
            print(f"{way:13}" + "".join(f"{number:10.2f}" for number in numbers))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("duet")
    parser.add_argument("program")
    parser.add_argument("gan")
    parser.add_argument("imagenet")
    parser.add_argument("make_image_folder")
    parser.add_argument("--libtorch", nargs=2, metavar=("PROGRAM", "TRAIN_ELASTIC"))
    parser.add_argument("--fewer", action="store_true", help="only the jobs that go on with fewer ranks, or have spare ones")
    parser.add_argument("--cells", action="store_true", help="each fault point with each rank and signal")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--costs", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--networks", nargs="+", default=[], help="of --random; default: all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(options, folder)


def run(options, folder):
    options.networks = options.networks or (LIBTORCH if options.libtorch else (*NETWORKS, *OF_TRAIN, *OWN, "imagenet"))
    options.script, options.images = f"{folder}/net.pt", "synthetic:classes=4,size=24,train=120,test=60"
    if options.libtorch:
        subprocess.run([options.libtorch[0], "script", options.script], check=True)
    made = subprocess.run([options.make_image_folder, f"{folder}/images", options.images], check=False, capture_output=True)
    if made.returncode == 0:  # else duet is built without JPEG
        options.images = f"{folder}/images"
    strikes = Strikes(options, 4, options.random or options.cells)
    if options.random:
        strikes.run_random(options.random, options.seed)
    elif options.costs:
        strikes.run_costs(options.costs, options.seed)
    elif options.cells:
        strikes.run_cells()
    elif options.libtorch:
        strikes.run_libtorch()
    else:
        if not options.fewer:
            strikes.run_points()
            strikes.run_imagenet()
        strikes.run_with_fewer()
        strikes.run_with_spares()
        strikes.run_over_tcp()
        if not options.fewer:
            strikes.refuse(REFUSED)
            strikes.refuse(REFUSED_WITH_FEWER, 3, 1)
            strikes.refuse_launcher()
            strikes.run_ended()
    return strikes.finish()


if __name__ == "__main__":
    sys.exit(main())
