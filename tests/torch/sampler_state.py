#!/usr/bin/env python3
"""duet_torch.DistributedSampler against PyTorch's own, and its state: sampler_state.py SAMPLER [DRAW]

SAMPLER: the file _sampler.py, which needs no extension. DRAW: the number of the one draw to check, in place of 100. The last
line reads "N passed, N failed, N skipped".
"""
import importlib.util
import random
import sys

from checks import report
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler as TorchSampler


def load(path):
    spec = importlib.util.spec_from_file_location("_sampler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DistributedSampler


def passes(samplers, epochs):
    """The indices that each sampler gives in each epoch."""
    given = []
    for epoch in epochs:
        for sampler in samplers:
            sampler.set_epoch(epoch)
        given.append([list(sampler) for sampler in samplers])
    return given


def interleaved(ranks):
    """The one order that ranks deal out."""
    return [index for round_of_ranks in zip(*ranks) for index in round_of_ranks]


class Setting:
    """A draw: an epoch that stops after so many batches of each rank."""

    def __init__(self, number):
        draw = random.Random(number)
        self.first, self.second = draw.choice((1, 2, 3, 4, 8)), draw.choice((1, 2, 3, 4, 8))
        self.batch, self.size = draw.randint(1, 9), draw.randint(1, 200)
        self.options = {"shuffle": draw.random() < 0.8, "seed": draw.randrange(1000), "drop_last": draw.random() < 0.3}
        self.epoch, self.share = draw.randrange(5), draw.random()
        self.text = f"draw {number}: {vars(self)}"

    def samplers(self, kind, ranks):
        return [kind(range(self.size), ranks, rank, **self.options) for rank in range(ranks)]


def stopped(setting, kind):
    """States of the first ranks that stop within an epoch, and the samples that they had trained on by then."""
    samplers = setting.samplers(kind, setting.first)
    states, done = [], []
    for sampler in samplers:
        sampler.set_epoch(setting.epoch)
        batches = DataLoader(range(setting.size), batch_size=setting.batch, sampler=sampler)
        stop = round(setting.share * len(batches))
        done.append([])
        for batch in batches if stop > 0 else ():
            done[-1] += batch.tolist()
            sampler.advance(len(batch))
            stop -= 1
            if stop == 0:
                break
        states.append(sampler.state_dict())
    return states, done


def check_draw(number, kind):
    setting = Setting(number)
    own, torchs = (passes(setting.samplers(which, setting.second), range(3)) for which in (kind, TorchSampler))
    if own != torchs:
        return f"{setting.text}: another order than PyTorch's"
    states, done = stopped(setting, kind)
    if any(state != states[0] for state in states):
        return f"{setting.text}: the ranks' states differ: {states}"
    order = interleaved(passes(setting.samplers(TorchSampler, 1), [setting.epoch])[0])
    rest = order[states[0]["consumed"]:]
    for ranks in (setting.first, setting.second):
        samplers = setting.samplers(kind, ranks)
        for sampler in samplers:
            sampler.load_state_dict(states[0])
            sampler.set_epoch(sampler.epoch)  # as a loop does
        lengths = [len(sampler) for sampler in samplers]
        given = [list(sampler) for sampler in samplers]
        if [len(rank) for rank in given] != lengths:
            return f"{setting.text}: {lengths} were told, {given} given"
        whole = passes(setting.samplers(TorchSampler, setting.first), [setting.epoch])[0]
        if ranks == setting.first and [a + b for a, b in zip(done, given)] != whole:
            return f"{setting.text}: the same ranks go on with {given} behind {done}, uninterrupted they have {whole}"
        dealt, kept = interleaved(given), len(rest) // ranks * ranks if setting.options["drop_last"] else len(rest)
        if states[0]["consumed"] < setting.size and dealt[:kept] != rest[:kept] or not kept <= len(dealt) < kept + ranks:
            return f"{setting.text}: {ranks} ranks go on with {dealt}, left are {rest}"
        if done == whole and states[0]["consumed"] != setting.size:
            return f"{setting.text}: all is done, but the state has {states[0]['consumed']} samples"
        if [list(sampler) for sampler in samplers] != passes(setting.samplers(TorchSampler, ranks), [setting.epoch])[0]:
            return f"{setting.text}: a second pass of the epoch is not a whole one"
        if passes(samplers, [setting.epoch, setting.epoch + 1]) != passes(setting.samplers(TorchSampler, ranks),
                                                                          [setting.epoch, setting.epoch + 1]):
            return f"{setting.text}: the passes behind it are not whole ones"
    return ""


def told(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing"


def check_workers(kind):
    """The workers of a loader ask for indices ahead, which are not counted."""
    sampler = kind(range(100), 2, 0, shuffle=False)
    for count, batch in enumerate(DataLoader(range(100), batch_size=4, sampler=sampler, num_workers=2), 1):
        sampler.advance(len(batch))
        if sampler.state_dict()["consumed"] != min(8 * count, 100):
            return False
    return True


def errors(kind):
    sampler = kind(range(10), 2, 0)
    state = sampler.state_dict()
    first = next(iter(DataLoader(range(10), batch_size=2, sampler=sampler)))
    return {
        "no advance(): " + told(sampler.state_dict): "advance() was not called" in told(sampler.state_dict),
        "too far: " + told(lambda: sampler.advance(3)): told(lambda: sampler.advance(3)) ==
            "advance(3) after 0 samples, but the pass has given 2" and len(first) == 2,
        "another seed": told(lambda: kind(range(10), 2, 0, seed=1).load_state_dict(state)) ==
            "the state is of a sampler with seed 0, this one has 1",
        "another data set": "size 10, this one has 9" in told(lambda: kind(range(9), 2, 0).load_state_dict(state)),
        "too many samples": "11 samples of 10" in told(lambda: sampler.load_state_dict({**state, "consumed": 11})),
    }


def main(path, only=None):
    kind = load(path)
    checks = {"workers": check_workers(kind), "a DistributedSampler of PyTorch's": issubclass(kind, TorchSampler), **errors(kind)}
    wrong = [text for number in ([int(only)] if only else range(100)) if (text := check_draw(number, kind))]
    checks["\n".join(["draws"] + wrong)] = not wrong
    return report(checks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
