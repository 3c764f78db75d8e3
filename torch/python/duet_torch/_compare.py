"""Answers "DP or DDP?" for a network of PyTorch, by the program duet."""
import copy
import html
import json
import os
import re
import shutil
import subprocess
import tempfile
import warnings

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
# Of a wheel, of an installation (lib/duet/python/duet_torch), and of a build folder (torch/python/duet_torch).
PROGRAMS = ("bin/duet", "../../../../bin/duet", "../../../cli/duet")


class Comparison:
    """What `duet compare` found. A notebook shows its verdict."""

    def __init__(self, screen, folder):
        self.screen = screen  # what the program prints
        self.page = os.path.join(folder, "index.html")
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            self.results = json.load(file)
        with open(self.page, encoding="utf-8") as file:
            self.verdict = html.unescape(re.search(r"<h1>(.*?)</h1>", file.read(), re.S)[1])

    def __str__(self):
        return self.verdict

    def __repr__(self):
        return f"<{self.verdict} {self.page}>"

    def _repr_html_(self):
        return (f"<p><b>{html.escape(self.verdict)}</b></p><pre>{html.escape(self.screen)}</pre>"
                f'<p><a href="file://{html.escape(self.page)}">{html.escape(self.page)}</a></p>')


def _program():
    """$DUET, else the program that was installed or built with this package, else that on PATH."""
    own = (os.path.normpath(os.path.join(HERE, path)) for path in PROGRAMS)
    found = os.environ.get("DUET") or next(filter(os.path.isfile, own), None) or shutil.which("duet")
    if not found:
        raise FileNotFoundError("no program duet: neither $DUET, nor beside the package duet_torch, nor on PATH")
    return found


def _to_script(module, example_input):
    """TorchScript of a copy: tracing runs the module, which changes the statistics of a batch norm."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    ways = {"torch.jit.trace": lambda copied: torch.jit.trace(copied, example_input, check_trace=False),
            "torch.jit.script": torch.jit.script}
    reasons = []
    for name, way in ways.items():
        try:
            with warnings.catch_warnings(record=True) as found, torch.random.fork_rng(devices=[]):
                warnings.simplefilter("always")
                script = way(copy.deepcopy(module).cpu().train())
            # A trace has one branch of a condition on the input's values.
            doubts = [one.message for one in found if issubclass(one.category, torch.jit.TracerWarning)]
            if not doubts:
                return script
            reasons.append(f"{name}: {_first_line(doubts[0])}")
        except Exception as error:  # pylint: disable=broad-except; whatever the module's code throws
            reasons.append(f"{name}: {_first_line(error)}")
    raise ValueError(f"{type(module).__name__} cannot be made TorchScript. {'. '.join(reasons)}")


def _first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.:')}" if lines else type(error).__name__


def _arguments(options):
    """Of a command line: {"sync_bn": True, "devices": [1, 2]} is --sync-bn --devices 1,2."""
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            yield option
        elif isinstance(value, (list, tuple)):
            yield from (option, ",".join(map(str, value)))
        elif value is not None and value is not False:
            yield from (option, str(value))


def _run(command):
    """What it prints. An interrupt of the notebook ends it and its ranks."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        raise RuntimeError(f"duet compare ended with exit code {process.returncode}: {(err or out).strip()}")
    return out.strip("\n")


def compare(module, example_input, *, time_budget=45, out=None, **options):
    """Which mode trains the module fastest on this machine, and why: a Comparison.

    module         a network for images, (N, C, H, W) -> (N, classes); it stays as it is
    example_input  images for it, (N, 1, 28, 28) or (N, 3, H, H); N is the batch
    time_budget    seconds for timing, besides those of the start
    out            folder for the page, results.json and the TorchScript; default: a new one for temporary files
    options        those of `duet compare`, by name: devices=[1, 2], lr=0.05, data="images"
    """
    if not isinstance(example_input, torch.Tensor) or example_input.dim() != 4:
        got = tuple(example_input.shape) if isinstance(example_input, torch.Tensor) else type(example_input).__name__
        raise ValueError(f"example_input: got {got}, expected a tensor of images, (N, C, H, W)")
    script = _to_script(module, example_input.detach().cpu())
    folder = os.path.abspath(out or tempfile.mkdtemp(prefix="duet-"))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, script.original_name + ".pt")  # the page's command names it
    script.save(path)
    batch, *sizes = example_input.shape
    settings = {"batch": batch, "time_budget": time_budget, **options, "model": path,
                "input": "x".join(map(str, sizes)), "out": folder}
    return Comparison(_run([_program(), "compare", "--quiet", *_arguments(settings)]), folder)
