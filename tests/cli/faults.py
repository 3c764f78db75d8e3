#!/usr/bin/env python3
"""Runs duet bench faults: ranks die and are survived, with the bits of undisturbed trainings.

    faults.py DUET

PyTorch is a stand-in, this file, which is called as a Python would be.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

SMALL = ("--steps", "12", "--batch", "16", "--kills", "2", "--checkpoint-every", "3", "--seed", "6", "--quiet")


def stand_in(arguments):
    """What torch_peer.py leaves behind under torchrun, without a training."""
    if arguments[0] == "-c":
        print("\nPyTorch 9.9")
        return 0
    assert arguments[:2] == ["-m", "torch.distributed.run"], arguments
    options = dict(argument.lstrip("-").split("=", 1) for argument in arguments if "=" in argument)
    steps, every = int(options["steps"]), int(options.get("checkpoint-every", 0))
    kills = [tuple(map(int, kill.split("@"))) for kill in options.get("kills", "").split(",") if kill]
    assert options["nproc_per_node"] == "2" and options.get("max_restarts", "0") == str(len(kills)), options
    assert os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    with open(options["fault-log"], "w", encoding="ascii") as log:
        step = attempt = 0
        while step < steps:
            step += 1
            if kills and kills[0][0] == step:
                print("killed", attempt, kills.pop(0)[1], step, time.monotonic_ns(), file=log)
                attempt += 1
                step = (step - 1) // every * every
            else:
                print("complete", attempt, 0, step, time.monotonic_ns(), file=log)
    with open(options["result"], "w", encoding="ascii") as file:
        json.dump({"torch": "9.9", "parameters_sha256": f"of {attempt} restarts"}, file)
    return 0


def run(duet, folder, *arguments):
    return subprocess.run([duet, "bench", "faults", *SMALL, *arguments], cwd=folder, capture_output=True, text=True, timeout=100)


def check_kills(duet, folder):
    """each training ends with the bits of the undisturbed one, and has lost what it must"""
    ran = run(duet, folder, "--model", "linear", "--rounds", "2", "--json")
    assert ran.returncode == 0, ran
    found = json.loads(ran.stdout)
    with open(f"{folder}/faults/results.json", encoding="utf-8") as file:
        assert found == json.load(file)
    steps = [kill["step"] for kill in found["kills"]]
    assert len(set(steps)) == 2 and all(2 <= step <= 12 for step in steps), found["kills"]
    undisturbed, elastic, spare, restarts = found["runs"]
    assert [one["mode"] for one in found["runs"]] == ["undisturbed", "elastic", "elastic spare", "restarts"]
    assert undisturbed["kills"] == 0 and undisturbed["lost_steps"] == [0, 0] and undisturbed["same_bits"] is None
    assert elastic["lost_steps"] == spare["lost_steps"] == [2, 2], found["runs"]  # the step in flight
    assert restarts["lost_steps"] == [sum((step - 1) % 3 + 1 for step in steps)] * 2, (steps, restarts)
    for one in (elastic, spare, restarts):
        assert one["ok"] and one["kills"] == 2 and one["same_bits"] is True, one
        assert one["parameters_sha256"] == undisturbed["parameters_sha256"] and len(one["parameters_sha256"]) == 64, one
        assert len(one["recovery_s"]) == 4 and all(second > 0 for second in one["recovery_s"]), one
    assert elastic["progress_step"] == list(range(1, 13)), elastic
    with open(f"{folder}/faults/results.csv", encoding="ascii") as file:
        assert [line.split(",")[0] for line in file] == ["mode", "undisturbed", "elastic", "elastic spare", "restarts"]
    assert " same bits\n" in ran.stderr and "elastic takes " in ran.stderr, ran.stderr


def check_peer(duet, folder):
    """PyTorch's trainings are compared with its own undisturbed one; other bits there are no failure of duet's"""
    ran = run(duet, folder, "--vs-torch", os.path.abspath(__file__), "--out", "peer")
    assert ran.returncode == 0, ran
    with open(f"{folder}/peer/results.json", encoding="utf-8") as file:
        found = json.load(file)
    peer = {one["mode"]: one for one in found["runs"][4:]}
    assert list(peer) == ["torch undisturbed", "torch restarts"], peer
    assert peer["torch restarts"]["same_bits"] is False and peer["torch restarts"]["kills"] == 2, peer
    assert peer["torch restarts"]["lost_steps"] == found["runs"][3]["lost_steps"], found
    assert "# torch is PyTorch 9.9" in ran.stdout, ran.stdout


def check_errors(duet, folder):
    """what cannot be done is said in one line, before anything is trained"""
    for arguments, code, said in ((("--vs-torch", "/bin/false"), 2, "--vs-torch /bin/false: exit code 1"),
                                  (("--data", "nowhere"), 1, "nowhere"), (("--kills", "12"), 2, "--kills is 12, but"),
                                  (("--out", "/proc/none"), 1, "/proc/none")):
        ran = run(duet, folder, *arguments)
        assert ran.returncode == code and said in ran.stderr and ran.stderr.count("\n") == 1 and not ran.stdout, ran


def main(duet):
    checks = (check_kills, check_peer, check_errors)
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            check(duet, folder)
    print(f"{len(checks)} passed, 0 failed, 0 skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])) if len(sys.argv) == 2 else stand_in(sys.argv[1:]))
