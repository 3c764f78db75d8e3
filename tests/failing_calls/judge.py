"""Whether a run in which a call failed has ended well: see campaign.py."""
import dataclasses
import json
import os
import re
import struct

NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
LOCK = ".duet.lock"  # stays where it could not be taken; the file alone locks nothing
TEMPORARY = re.compile(r"\.tmp\.\d+|^\.duet|^duet-\w{6}$")
REMOVING = ("unlink", "unlinkat", "remove", "rmdir")


def content_of(path):
    """Tensors and metadata of a checkpoint, without names of run and series and without the checksum; None for a file
    that is not whole."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + size])
    except (struct.error, ValueError):
        return None
    metadata = {key: text for key, text in header.pop("__metadata__").items()
                if key not in ("setting.run", "series", "duet.sha256")}
    tensors = data[8 + size:]
    return header, metadata, tensors if len(tensors) == max(t["data_offsets"][1] for t in header.values()) else None


def kind_of(path, outputs):
    """What a path is a case of: without numbers and what mkdtemp chose; what is written in the same way is of one kind."""
    kind = re.sub(r"duet-\w{6}", "duet-X", re.sub(r"\d+", "N", os.path.basename(path)))
    return next((kind.replace(name, "output") for name in outputs if kind.startswith(os.path.basename(name))), kind)


def files_below(folder):
    return [os.path.join(at, name) for at, folders, names in os.walk(folder) for name in folders + names]


def processes_with(text):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if text.encode() in file.read() and int(pid) != os.getpid():
                    found.append(pid)
        except OSError:
            pass
    return found


def unsynced(calls, succeeded):
    """Texts of files that got their names before their bytes were on disk, or whose names are not, after a success."""
    bad = []
    for at, call in enumerate(calls):
        if call.name != "rename" or call.fault != "-" or not TEMPORARY.search(os.path.basename(call.path)):
            continue
        of_file = [one for one in calls[:at] if one.path == call.path and one.name in ("write", "fsync")]
        names = {one.path for one in calls[at:] if one.name == "fsync" and one.fault == "-"}
        if not of_file or (of_file[-1].name, of_file[-1].fault) != ("fsync", "-"):
            bad.append(f"{call.target} was named before it was synced")
        if succeeded and os.path.dirname(call.target) not in names:
            bad.append(f"the name of {call.target} was not synced")
    return bad


@dataclasses.dataclass
class Verdict:
    end: str                 # what became of it, in words
    bad: list                # what went wrong
    left: list               # temporary files


class Judge:
    def __init__(self, scenario, whole):
        self.scenario = scenario
        self.digest = self.result_of(whole.folder)
        self.bad = unsynced(whole.calls, True)

    def result_of(self, folder):
        if "result" not in self.scenario.outputs:
            return None
        with open(folder + "/result", encoding="utf-8") as file:
            return json.load(file)["parameters_sha256"]

    def checkpoints(self, folder, bits):
        """Steps of the checkpoints that are there, and texts of those that are not right."""
        steps, bad = [], []
        kept = folder + "/kept"
        for name in os.listdir(kept) if os.path.isdir(kept) else ():
            match = NAME.fullmatch(name)
            if not match and name != "model_best.safetensors":
                continue
            content = content_of(f"{kept}/{name}")
            right = content == bits.get(int(match[1])) if match else content in bits.values()
            if not right:
                bad.append(f"{name} is torn or has wrong bits")
            elif match:
                steps.append(int(match[1]))
        return sorted(steps), bad

    def promised(self, folder, scenario):
        missing = [name for name in scenario.outputs if not os.path.exists(f"{folder}/{name}")]
        bad = [f"exit code 0 without {name}" for name in missing]
        steps, _ = self.checkpoints(folder, scenario.bits)
        if scenario.last and scenario.last not in steps:
            bad.append(f"exit code 0 without the checkpoint of step {scenario.last}")
        if scenario is self.scenario and not missing and self.result_of(folder) != self.digest:
            bad.append("the result has wrong bits")
        return bad

    def __call__(self, run, plan):
        fault = plan.split(":")[-1]
        failed = [call for call in run.calls if call.fault != "-"]
        steps, bad = self.checkpoints(run.folder, self.scenario.bits)
        if not failed:
            return Verdict("not reached", bad, [])
        call = failed[0]
        renamed = [int(match[1]) for one in run.calls if one.name == "rename" and one.fault == "-"
                   if one.target.startswith(run.folder + "/kept/") and (match := NAME.search(one.target))]
        renamed += [int(match[1]) for name in run.before if (match := NAME.fullmatch(name))]
        if renamed and max(renamed) not in steps:
            bad.append(f"the checkpoint of step {max(renamed)} is gone")
        if run.status is None:
            bad.append("hung")
        elif run.status < 0 or run.status > 2:
            bad.append(f"ended by a signal or another's exit code: {run.status}")
        elif run.status == 0:
            bad += self.promised(run.folder, self.scenario)
        else:
            bad += self.told(run.output, failed, fault)
        if run.status and fault in ("4", "short"):
            bad.append("a call that was interrupted, or did a part, is to be made again")
        bad += unsynced(run.calls, run.status == 0)
        bad += [f"process {pid} is left" for pid in processes_with(run.folder + "/")]
        left = [path for path in files_below(run.folder) if TEMPORARY.search(os.path.basename(path))]
        if os.path.basename(failed[0].path) == LOCK:
            left = [path for path in left if os.path.basename(path) != LOCK]
        if left and fault != "gone" and not any(call.name in REMOVING for call in failed):
            bad.append(f"left behind: {', '.join(left)}")
        return Verdict("went on" if run.status == 0 else "ended with an error", bad, left)

    def told(self, output, failed, fault):
        """What an error does not say."""
        numbers = {int(call.fault) for call in failed if call.fault.isdigit()}
        bad = []
        if numbers and not any(os.strerror(number) in output for number in numbers):
            bad.append(f"the error {fault} is not told")
        names = {re.sub(r"(\.tmp\.\d+.*|/?\.duet[.-].*)$", "", path).removesuffix(" (deleted)")
                 for call in failed for path in (call.path, call.target) if path}
        if not any(name in output for name in names):
            bad.append("the file is not named")
        return bad

    def next(self, verdict, run):
        """The verdict with what the next run, without faults, shows."""
        bad = list(verdict.bad)
        if run.status != 0:
            bad.append(f"the next training fails: {run.output}")
        else:
            bad += self.promised(run.folder, self.scenario.next)
        _, wrong = self.checkpoints(run.folder, self.scenario.bits)
        bad += wrong
        # A folder that got no lock may be in use: see TemporaryFolder.
        kept = [path for path in verdict.left if os.path.exists(path) and
                (os.path.isfile(path) or os.path.exists(path + "/.lock"))]
        if kept:
            bad.append(f"left for ever: {', '.join(kept)}")
        return dataclasses.replace(verdict, bad=bad)
