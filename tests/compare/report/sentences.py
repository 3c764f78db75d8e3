#!/usr/bin/env python3
"""Checks each sentence of a comparison's first screen against its results.json.

    sentences.py DUET TEST_CLI     comparisons that TEST_CLI makes up
    sentences.py DUET DIR...       comparisons that were measured
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

BUSY = 0.1  # share of a row's cores that other programs have in a busy round
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def value(text):
    return float(text.replace(",", ""))


class Screen:
    """What `duet show` prints, and what the file behind it says."""

    def __init__(self, duet, path):
        ran = subprocess.run([duet, "show", path], capture_output=True, text=True, timeout=60, check=True)
        lines = ran.stdout.splitlines()
        head = next(i for i, line in enumerate(lines) if line.startswith("  mode "))
        end = next((i for i in range(head, len(lines)) if re.match(r"  (All \d|Why|Nearly|Noise|Left|Nothing|Pred|Speed)", lines[i])
                    or not lines[i].strip()), len(lines))
        self.rows = lines[head + 1:end]
        self.above = " ".join(" ".join(lines[2:head]).split())
        self.below = " ".join(" ".join(lines[end:]).split())
        self.axis = lines[head]
        with open(path, encoding="utf-8") as file:
            self.results = json.load(file)
        self.runs = {self.label(run): run for run in self.results["runs"] if run["ok"]}

    @staticmethod
    def label(run):
        whole = run["mode"] == "single" and run["threads_per_device"] > 1
        return run["mode"] + (", all cores" if whole else "") + ("" if run["mode"] == "single" else f" {run['devices']}")

    def is_busy(self):
        """Whether most rounds, those of single or those of all rows of dp and ddp were busy."""
        def most(shares):
            return 2 * sum(share > BUSY for share in shares) > len(shares)

        wrapped = [run for run in self.runs.values() if run["devices"] > 1 and run["mode"] in ("dp", "ddp")]
        return (most([share for run in self.runs.values() for share in run["rounds_other_programs"]])
                or most(self.runs["single"]["rounds_other_programs"])
                or bool(wrapped) and all(most(run["rounds_other_programs"]) for run in wrapped))

    def ratios(self, run, base):
        """How many times as fast each common round was that neither had to share."""
        def quiet(one):
            busy = [share > BUSY for share in one["rounds_other_programs"]]
            return [not b for b in busy] if busy.count(False) >= 3 else [True] * len(busy)

        pairs = list(zip(base["rounds_us"], run["rounds_us"], quiet(base), quiet(run)))
        rows = run["batch"] / base["batch"]
        kept = [rows * a / b for a, b, one, other in pairs if one and other]
        return kept if len(kept) >= 3 else [rows * a / b for a, b, _, _ in pairs]


def check_rows(screen):
    """The speed-up is single's step time divided by the row's (per sample), and the median of the rounds' ratios."""
    found, units = {}, set()
    for line in screen.rows:
        cells = re.match(rf"  (\S.*?)  .*?\s(\d+\.\d\d)[ !]\s+({NUMBER}) (us|ms|s)\s+({NUMBER})  \S", line)
        if cells:
            units.add(cells[4])
            found[cells[1].strip()] = (float(cells[2]), value(cells[3]) * {"us": 1, "ms": 1e3, "s": 1e6}[cells[4]], value(cells[5]))
    yield len(units) == 1, f"steps in {units}"
    single = found["single"][1]
    for label, (speedup, step_us, rate) in found.items():
        batch = screen.runs[label]["batch"]
        reached = single / step_us * batch / screen.runs["single"]["batch"]
        yield abs(speedup - reached) < 0.005 + 0.012 * speedup, f"{label}: {speedup} is not {single} / {step_us}"
        yield abs(rate * step_us / 1e6 / batch - 1) < 0.01, f"{label}: {rate} samples/s at {step_us} us for {batch}"
        ratios = screen.ratios(screen.runs[label], screen.runs["single"])
        middle = statistics.median(ratios) if ratios else speedup  # rows that add nothing have no rounds
        yield label == "single" or abs(speedup - middle) < 0.0051 * max(1, middle), f"{label}: {speedup}, its rounds {middle}"


def check_load(screen):
    """A busy comparison concludes nothing, and a quiet one doesn't blame others."""
    says = screen.above.startswith("Other programs used ")
    yield says == screen.is_busy(), f"load: '{screen.above}'"
    if not says:
        return
    busy = [share for run in screen.runs.values() for share in run["rounds_other_programs"] if share > BUSY]
    ends = re.match(r"Other programs used (\d+)(?: to (\d+))? % of the cores", screen.above)
    yield bool(busy) and abs(int(ends[1]) - 100 * min(busy)) <= 1, f"the least load: {screen.above}"
    yield bool(busy) and abs(int(ends[2] or ends[1]) - 100 * max(busy)) <= 1, f"the highest load: {screen.above}"
    text = screen.above + screen.below + " ".join(screen.rows)
    for words in ("[", "Predicted", "Nothing is predicted", "Why not", "Noise", "told apart", "as fast"):
        yield words not in text, f"busy, but '{words}' in: {text}"


def check_intervals(screen):
    """Each interval holds its value, and lies within the rounds'; the axis ends at twice the ideal."""
    for low, high in re.findall(rf"\(({NUMBER})x?\.\.({NUMBER})x?\)", screen.above + screen.below):
        yield value(low) <= value(high), f"({low}..{high})"
    for middle, low, high in re.findall(rf"({NUMBER}) (?:times|ms|us|s) (?:as fast as one |reaches )?\(({NUMBER})\.\.({NUMBER})\)", screen.above + screen.below):
        yield value(low) <= value(middle) <= value(high), f"{middle} ({low}..{high})"
    ideal = max(run["devices"] * run["threads_per_device"] for run in screen.runs.values())
    top = re.search(r"(\d+(?:\.\d+)?)x +speed-up", screen.axis)
    yield top is None or float(top[1]) <= 2 * ideal, f"axis: {screen.axis}"


def pair_of(screen, first, second):
    runs = [screen.runs.get(re.sub(r" on (\d+) devices?$", r" \1", name.strip())) for name in (first, second)]
    return runs if all(runs) else None


def check_equality(screen):
    """'as with' and 'as fast' need rounds within 5 %; 'could not be told apart' rounds that don't exclude 1."""
    devices = re.match(r"(\d+) devices train ([\d.]+) times as fast as one \(([\d.]+)\.\.([\d.]+)\), with (\w+)", screen.above)
    if not devices:
        return
    best = screen.runs[f"{devices[5]} {devices[1]}"]
    yield float(devices[3]) >= 1, f"no gain: {screen.above}"
    for other in re.findall(r" as with (\w+)", screen.above):
        ratios = screen.ratios(screen.runs[f"{other} {devices[1]}"], best)
        yield abs(statistics.median(ratios) - 1) <= 0.05, f"{other} isn't as fast as {devices[5]}: {ratios}"
    for name in re.findall(r"cores is as fast\b", screen.above):
        ratios = screen.ratios(screen.runs["single, all cores"], best)
        yield abs(statistics.median(ratios) - 1) <= 0.05, f"{name}: {ratios}"
    for low, high in re.findall(r"told apart from [^(]+ \(([\d.]+) to ([\d.]+)\)", screen.above):
        yield float(low) <= 1 <= float(high), f"told apart: {screen.above}"


def check_causes(screen):
    """The causes add up to the loss, and none lies outside its own interval."""
    why = re.search(rf"Why not \d+x: .*? takes ({NUMBER}) (\S+), .*?is ({NUMBER}) \S+\. Of the ({NUMBER}) \S+: (.*?)(?:Nothing is|Predicted|All \d|Noise|Left|$)", screen.below)
    if not why:
        return
    lost = value(why[4])
    yield not re.search(r"-0(\.0+)? ", why[5]), f"-0: {why[0]}"
    yield abs(value(why[1]) - value(why[3]) - lost) < 0.02 * max(1, lost), f"lost: {why[0]}"
    parts = re.findall(rf"({NUMBER}) {why[2]}(?: \(({NUMBER})\.\.({NUMBER})\))?", why[5])
    yield abs(sum(value(part[0]) for part in parts) - lost) < 0.02 * len(parts) * max(1, 0.2 * lost), f"the causes: {why[0]}"
    for middle, low, high in parts:
        yield not low or value(low) <= value(middle) <= value(high), f"a cause: {middle} ({low}..{high})"


def check_predictions(screen):
    """Predictions are printed as ranges, or the row that refutes them is named."""
    said = re.search(r"Predicted for more \w+: (.*?)\.(?: |$)(?!\d)", screen.below)
    for low, high in re.findall(r"(\d+(?:\.\d+)?)x? ?(?:to|\.\.) ?(\d+(?:\.\d+)?)", said[1] if said else ""):
        yield float(low) <= float(high), f"predictions: {said[0]}"
    yield not (said and "Nothing is predicted" in screen.below), f"both: {screen.below}"


CHECKS = (check_rows, check_load, check_intervals, check_equality, check_causes, check_predictions)


def main():
    duet, failures, answers, checked = sys.argv[1], [], set(), set()
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(one, "results.json") for one in sys.argv[2:]]
        if files and os.access(sys.argv[2], os.X_OK) and os.path.isfile(sys.argv[2]):
            subprocess.run([sys.argv[2], "[.sentences]"], env={**os.environ, "DUET_SENTENCES": folder}, check=True, stdout=subprocess.DEVNULL)
            files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        for file in files:
            screen = Screen(duet, file)
            found = [(one, good, what) for one in CHECKS for good, what in one(screen)]
            failures += [f"{file}: {one.__name__}: {what}" for one, good, what in found if not good]
            checked |= {one for one, _, _ in found}
            answers.add(re.sub(r"[\d., ]+", "", screen.above)[:16])
    if len(files) > 100:
        failures += [f"{one.__name__} found nothing to check" for one in CHECKS if one not in checked]
    if len(files) > 100 and len(answers) < 3:
        failures.append(f"all comparisons have one of these answers: {answers}")
    print(*failures, f"{len(files)} comparisons checked, {len(failures)} sentences are wrong", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
