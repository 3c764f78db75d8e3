#!/usr/bin/env python3
"""Elastic jobs on several hosts, each of which is a launcher on this one, or in a network namespace of its own.

    hosts.py DUET PROGRAM                          ranks and hosts are lost, and take part again
    hosts.py DUET PROGRAM --random N [--seed S]    N jobs, struck at random times
"""
import argparse
import contextlib
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time

from strikes import LIMIT, Campaign, Job, state_of

RANKS = 2  # of a host
SILENT = "which has said nothing for 5 s"
GONE = ("no store answered", "the launcher of host 0 is gone", "came after the job had ended")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Hosts:
    """The launchers of one job. `spaces`: the network namespaces of the hosts; none: they are on loopback."""

    def __init__(self, options, network, hosts=2, least=0, spaces=(), absent=0, rdzv_timeout=300, replace_timeout=60,
                 **environment):
        self.network, self.spaces = network, spaces
        self.folder = tempfile.TemporaryDirectory()
        self.reached = f"{self.folder.name}/reached"
        self.environment = {**environment, "REACHED": self.reached}
        place = "10.213.8.1:29500" if spaces else f"127.0.0.1:{free_port()}"
        if network == "trained":
            program = [options.duet, "train", "--mode", "ddp", "--model", "linear", "--data", "synthetic", "--train-images",
                       "240", "--test-images", "60", "--batch", "24", "--epochs", "3", "--blocks", "8",
                       "--result", f"{self.folder.name}/result.json", "--fingerprints", f"{self.folder.name}/fingerprints",
                       "--checkpoint", f"{self.folder.name}/checkpoints", "--checkpoint-every", "7"]
        else:
            program = ["/bin/true"] if network == "true" else [options.program, network]
        self.command = [options.duet, "launch", "--nnodes", str(hosts), "-n", str(RANKS), "--rdzv-endpoint", place,
                        "--elastic", "--max-failures", "50", "--stop-limit", "0.5", "--replace-timeout", str(replace_timeout),
                        "--min-ranks", str(least), "--rdzv-timeout", str(rdzv_timeout), "--", *program]
        self.launchers = [self.start(host) for host in range(hosts - absent)]
        self.ended, self.again = [], set()
        self.may_end = set()  # hosts whose launchers may end the job with an error
        self.done = []  # what was done to them

    def start(self, host):
        space = ["ip", "netns", "exec", self.spaces[host]] if self.spaces else []
        command = self.command[:2] + ["--node-rank", str(host)] + self.command[2:]
        return Job(space + command, **self.environment)

    def start_again(self, host):
        self.ended.append(self.launchers[host])
        self.again.add(host)
        self.launchers[host] = self.start(host)

    def ranks(self):
        return {rank: process for launcher in self.launchers for rank, process in launcher.ranks().items()}

    def await_step(self):
        """Until the program has done five steps."""
        end = time.monotonic() + LIMIT
        while not os.path.exists(self.reached) and time.monotonic() < end:
            time.sleep(0.01)

    def end(self, expected=None):
        """What is wrong with the ends of the launchers that are there, the state, and what they have said."""
        wrong, output, errors = [], "", ""
        for host, launcher in enumerate(self.launchers):
            if host in self.again:  # it may have been started when the job was over
                with contextlib.suppress(subprocess.TimeoutExpired):
                    launcher.process.wait(10)
                launcher.process.terminate()
            how, printed, said = launcher.end()
            if how and host in self.again and any(text in said for text in (*GONE, "ended by signal 15")):
                continue
            if how and host in self.may_end and not how.startswith("still ran") and (how == "exit code -9" or "duet: " in said):
                self.may_end |= {"any"} if host == 0 else set()  # of the job
                continue
            wrong += [f"host {host}: {how}"] if how != (expected or {}).get(host, "") else []
            output += printed
            errors += said
        for launcher in self.ended:
            launcher.process.communicate()
        network = "trained_linear" if self.network == "trained" else self.network
        state = state_of(network, output, self.folder.name)
        self.folder.cleanup()
        return ", ".join(wrong), state, errors


class Tests(Campaign):
    def run(self, what, network, strike, texts=(), ends=None, no_state=False, **of_hosts):
        """strike(hosts) does what is to happen to the job, whose launchers say these texts; it may return ranks that it struck."""
        if not self.is_drawn():
            return
        if not no_state and network not in self.expected:
            wrong, self.expected[network], errors = Hosts(self.options, network).end()
            if wrong:
                sys.exit(f"undisturbed, {network}: {wrong}\n{errors}")
        hosts = Hosts(self.options, network, **of_hosts)
        struck = strike(hosts)
        wrong, state, errors = hosts.end(ends)
        if self.is_lost(wrong, struck or [], errors):
            return
        if not wrong and not no_state and "any" not in hosts.may_end and state != self.expected[network]:
            wrong = f"{state}, expected {self.expected[network]}"
        wrong = wrong or ", ".join(f"not said: {text}" for text in texts if not re.search(text, errors))
        self.report(f"{what}, {network}, {hosts.done}", wrong, errors)

    def run_ranks(self):
        """Ranks of both hosts are lost."""
        points = [("all_reduce", 1), ("all_reduce", 9), ("collective", 25), ("init", 1)]
        for i, (point, times) in enumerate(points):
            for j, rank in enumerate((0, 2, 3)):
                number = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)[(i + j) % 3]
                begins = point == "init" or times == 1
                network, least = ("cnn", "synchronised", "plain")[i % 2 if j else 2 * (i % 2)], (i + j) % 2
                if network == "plain":
                    least = 0
                fault = f"{point}:{rank}:{times}:{int(number)}"
                said = "all ranks start again" if begins else f"rank {rank} is (replaced|left out) after"
                self.run(f"DUET_FAULT={fault}", network, lambda hosts: None, [said], least=least, DUET_FAULT=fault)
        for rank in (1, 2):
            fault = f"commit:{rank}:9:9"
            self.run(f"DUET_FAULT={fault}", "trained", lambda hosts: None, [f"rank {rank} is replaced after"],
                     DUET_FAULT=fault)

    def run_hosts(self):
        """Hosts are lost as a whole, or leave."""
        slow = {"DUET_DELAY": "all_reduce:*:8000"}

        def kill(hosts, host=1):
            hosts.await_step()
            hosts.launchers[host].process.kill()

        def kill_and_start(hosts):
            kill(hosts)
            hosts.start_again(1)

        def leave(hosts):
            hosts.await_step()
            hosts.launchers[1].process.terminate()

        killed, gone = {1: "exit code -9"}, {1: "exit code 143"}
        self.run("a launcher is killed", "cnn", kill, [SILENT, r"rank 2 is replaced after"], killed, **slow)
        self.run("a launcher is killed", "cnn", kill, [f"{SILENT}.*the others continue without it until its host", "rank 3 is left out"],
                 killed, least=1, **slow)
        self.run("a launcher is started again", "cnn", kill_and_start,
                 ["was started again", "host 1 takes part again", "rank 2 is replaced"], **slow)
        self.run("a launcher is started again", "cnn", kill_and_start,
                 ["was started again", "host 1 takes part again", "rank 2 is left out"], least=2, **slow)
        self.run("a launcher is ended", "cnn", leave, ["host 1, which has left the job: ended by signal 15", "rank 3 is replaced"],
                 gone, **slow)
        self.run("one launcher of three is ended", "cnn", leave, ["which has left the job", "rank 2 is left out"], gone,
                 hosts=3, least=1, **slow)

        def stop(hosts):
            hosts.await_step()
            with stopped(hosts.launchers[1]):
                hosts.launchers[0].process.wait(LIMIT)

        self.run("a host is stopped", "cnn", stop, [SILENT, "rank 3 is replaced"], {1: "exit code 1"}, **slow)

        def interrupt(hosts):
            hosts.await_step()
            hosts.launchers[0].process.send_signal(signal.SIGINT)

        self.run("the arbiter is interrupted", "cnn", interrupt, ["ended by signal 2"],
                 {0: "exit code 130", 1: "exit code 1"}, True, **slow)
        def interrupt_twice(hosts, late=False):
            hosts.await_step()
            with stopped(hosts.launchers[1]):
                hosts.launchers[0].process.send_signal(signal.SIGINT)
                while len(hosts.launchers[0].ranks()) > (0 if late else 1):
                    time.sleep(0.01)
                if late:
                    hosts.launchers.append(hosts.start(1))
                    hosts.launchers[2].process.wait(LIMIT)
                hosts.launchers[0].process.send_signal(signal.SIGINT)
                hosts.launchers[0].process.wait(4.5)  # host 1 would be waited for for 5 s

        ends = {0: "exit code 130", 1: "exit code 1", 2: "exit code 1"}
        self.run("the arbiter is interrupted twice", "cnn", interrupt_twice, ["ended by signal 2"], ends, True, **slow)
        self.run("a launcher comes when the job is over", "cnn", lambda hosts: interrupt_twice(hosts, True),
                 ["host 1 came after the job had ended"], ends, True, **slow)

        def pause(hosts, count):
            hosts.await_step()
            with stopped(*hosts.launchers[:count]):
                time.sleep(7)

        self.run("both hosts are paused", "cnn", lambda hosts: pause(hosts, 2), **slow)
        self.run("host 0 is paused", "cnn", lambda hosts: pause(hosts, 1),
                 ["host 1, which has left the job: the launcher of host 0 (has|is)", "rank 2 is replaced"], {1: "exit code 1"},
                 **slow)
        self.run("the arbiter is killed", "cnn", lambda hosts: kill(hosts, 0), ["the launcher of host 0 is gone"],
                 {0: "exit code -9", 1: "exit code 1"}, True, **slow)

        def overwrite(hosts):
            hosts.await_step()
            draw = random.Random(self.cells)
            rank = next(iter(hosts.launchers[draw.randrange(2)].ranks().values()))
            hosts.may_end |= {0, 1}
            with open(f"/proc/{rank}/environ", "rb") as file:
                path = re.search(rb"DUET_ELASTIC_FILE=([^\0]*)", file.read())[1]
            with open(path, "r+b", buffering=0) as file:
                size = os.path.getsize(path)  # the path is gone once its launcher has noticed
                for _ in range(draw.choice((1, 100, 3000))):
                    file.seek(draw.randrange(0, draw.choice((64, size))))
                    file.write(draw.choice((b"\0", b"\xff", b"\1")) * draw.choice((1, 4, 64)))

        for _ in range(6):
            self.run("a job's memory is overwritten", "cnn", overwrite, replace_timeout=10, **slow)

        def refuse(hosts):
            hosts.command[hosts.command.index("-n") + 1] = "3"
            hosts.start_again(1)
            hosts.launchers[1].process.wait(LIMIT)
            hosts.launchers[0].process.send_signal(signal.SIGINT)

        self.run("a launcher of another size", "cnn", refuse, ["hosts of 2 ranks, that of host 1 has 2 of 3: it is refused"],
                 {0: "exit code 130", 1: "exit code 1"}, True, **slow)

        self.run("a host never comes", "cnn", lambda hosts: None, ["no duet launch of host 2 came within 3000 ms"],
                 {0: "exit code 1", 1: "exit code 1"}, True, hosts=3, absent=1, rdzv_timeout=3)
        self.run("no process joins", "true", lambda hosts: None, no_state=True)
        self.run("a rank fails", "fails", lambda hosts: None, ["rank 1 is replaced after", "duet: rank 0 ended with exit code 2: step 12 fails on rank 0\n(.*\n)*.*step 12 fails on rank 0"],
                 {0: "exit code 1", 1: "exit code 1"}, True, DUET_FAULT="all_reduce:1:9:9")

    def run_cut(self):
        """The cable between two hosts is pulled."""
        try:
            with namespaces() as (spaces, cable):
                def pull(hosts):
                    hosts.await_step()
                    cable("down")

                for least in (0, 1):
                    cable("up")
                    self.run("the cable is pulled", "cnn", pull, [SILENT, "rank 2 is (replaced|left out)",
                                                                  "the launcher of host 0 (has said nothing|is gone)"],
                             {1: "exit code 1"}, spaces=spaces, least=least, DUET_SECRET=secrets.token_hex(32),
                             DUET_DELAY="all_reduce:*:8000")
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipped += 1
            print(f"no network namespaces: {error}")

    def run_random(self, count, seed):
        with contextlib.ExitStack() as stack:
            spaces, cable = (), None
            try:
                spaces, cable = stack.enter_context(namespaces())
                cable("up")
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"no network namespaces: {error}")
            for number in range(seed, seed + count):
                self.run_drawn(number, spaces, cable)

    def run_drawn(self, number, spaces, cable):
        draw = random.Random(number)
        network, count_of = draw.choice(("cnn", "synchronised", "trained")), draw.choice((2, 2, 3))
        least = draw.randrange(2 * count_of)
        between = {"spaces": spaces, "DUET_SECRET": secrets.token_hex(32)} if spaces and count_of == 2 else {}

        def strike(hosts):
            time.sleep(draw.uniform(0.1, 0.9))
            struck = []
            for _ in range(draw.choice((1, 1, 2, 3))):
                host, rank = draw.randrange(count_of), draw.randrange(2 * count_of)
                what = draw.choice(("rank",) * 4 + ("again", "kill", "pause", "pause", "cut"))
                seconds = draw.choice((0.5, 1, 2, 4, 6, 8, 20))
                hosts.done.append((what, host, rank, seconds))
                if what == "rank" and rank in (found := hosts.ranks()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(found[rank], draw.choice((signal.SIGKILL,) * 3 + (signal.SIGSTOP,)))
                        struck.append(rank)
                elif what in ("again", "kill"):
                    hosts.launchers[host].process.kill()
                    # It may not have come yet.
                    hosts.may_end |= set(range(count_of)) if host == 0 or what == "kill" else {host}
                    if what == "again" and host > 0:
                        hosts.start_again(host)
                elif what == "pause":
                    hosts.may_end |= set(range(count_of)) if seconds > 3 else set()  # a busy machine adds to it
                    which = draw.choice((hosts.launchers[host:host + 1], hosts.launchers))
                    with stopped(*which, with_ranks=draw.random() < 0.5):
                        time.sleep(seconds)
                elif what == "cut" and between:
                    hosts.may_end |= {0, 1} if seconds > 3 else set()
                    cable("down")
                    time.sleep(seconds)
                    cable("up")
                time.sleep(draw.choice((0, 0.01, 0.05, 0.2)))
            return struck

        self.run(f"--seed {number}, {count_of} hosts, {least} at least", network, strike, hosts=count_of, least=least,
                 rdzv_timeout=30, DUET_DELAY=f"all_reduce:*:{draw.choice((1000, 4000, 8000))}", **between)


@contextlib.contextmanager
def stopped(*launchers, with_ranks=True):
    processes = [process for launcher in launchers
                 for process in (launcher.process.pid, *(launcher.ranks().values() if with_ranks else ()))]
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def namespaces():
    """Two, with a cable between them, and a function that sets it "up" or "down"."""
    names = [f"duet-{os.getpid()}-{i}" for i in range(2)]

    def run(text):
        subprocess.run(text.split(), check=True, stderr=subprocess.DEVNULL)

    try:
        for name in names:
            run(f"ip netns add {name}")
        run(f"ip link add cable netns {names[0]} type veth peer name cable netns {names[1]}")
        for i, name in enumerate(names):
            run(f"ip -n {name} link set lo up")
            run(f"ip -n {name} addr add 10.213.8.{i + 1}/24 dev cable")

        yield names, lambda state: [run(f"ip -n {name} link set cable {state}") for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("duet")
    parser.add_argument("program")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tests = Tests(options, 3, options.random)
    if options.random:
        tests.run_random(options.random, options.seed)
    else:
        tests.run_ranks()
        tests.run_hosts()
        tests.run_cut()
    return tests.finish()


if __name__ == "__main__":
    sys.exit(main())
