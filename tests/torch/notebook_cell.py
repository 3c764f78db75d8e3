#!/usr/bin/env python3
"""Runs the cell of docs/howto/libtorch.md as a notebook does, for a short time: notebook_cell.py PAGE [DUET SOURCE]

Without DUET, the program, it is that of the installed package duet_torch. SOURCE: that package in the tree, where it was
not built: the comparison needs no extension, and is loaded alone. The last line reads "N passed, N failed, N skipped".
"""
import ast
import importlib.util
import os
import re
import sys
import tempfile

import torch
from checks import error_of, report


def load_without_extension(source):
    spec = importlib.util.spec_from_file_location("duet_torch", os.path.join(source, "_compare.py"))
    sys.modules["duet_torch"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["duet_torch"])


def value_of(cell):
    """What a notebook shows below it: the value of its last line."""
    *before, last = ast.parse(cell).body
    names = {}
    exec(compile(ast.Module(before, []), "cell", "exec"), names)  # pylint: disable=exec-used
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # pylint: disable=eval-used


class Unscriptable(torch.nn.Module):
    """Neither of TorchScript's ways takes it: a branch on values, and keyword-only arguments of any number."""

    def forward(self, images, **more):
        return images.flatten(1) if images.sum() > 0 else images.flatten(1) * len(more)


class Branch(torch.nn.Module):
    """Can be scripted, but not traced."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(784, 10)

    def forward(self, images):
        images = images.flatten(1)
        if bool(images.sum() > 0):
            images = images * 2
        return self.layer(images)


def main(page, duet="", source=""):
    if duet:
        os.environ["DUET"] = duet
    if source:
        load_without_extension(source)
    import duet_torch  # pylint: disable=import-outside-toplevel
    with open(page, encoding="utf-8") as file:
        cells = re.findall(r"^```python\n(.*?duet_torch\.compare\(.*?)^```", file.read(), re.M | re.S)
    cell, changed = re.subn(r"time_budget=\d+", "time_budget=5", cells[0])
    checks = {f"one cell with a time budget: {cells}": len(cells) == 1 and changed == 1}
    found = value_of(cell)
    runs = {(run["mode"], run["devices"]) for run in found.results["runs"]}
    with open(found.page, encoding="utf-8") as file:
        html = file.read()
    checks |= {
        f"the verdict is what the program prints: {found.screen}": found.verdict != "" and found.verdict in " ".join(found.screen.split()),
        f"the page: {html[:200]}": html.startswith("<!doctype html>") and f"<h1>{found.verdict}</h1>" in html,
        f"rows: {runs}": {("single", 1), ("dp", 2), ("ddp", 2)} <= runs,
        f"a notebook shows it: {found._repr_html_()}": found.verdict in found._repr_html_() and found.page in found._repr_html_(),
        "print() gives the verdict": str(found) == found.verdict,
    }
    images = torch.zeros(4, 1, 28, 28)
    with tempfile.TemporaryDirectory() as folder:
        short = {"out": folder, "time_budget": 0, "devices": [1], "train_images": 8, "test_images": 4}
        other = duet_torch.compare(Branch(), images, **short)
        checks[f"a network that can only be scripted: {other}"] = other.results["runs"][0]["ok"]
        errors = [error_of(lambda: duet_torch.compare(Unscriptable(), images, **short)),
                  error_of(lambda: duet_torch.compare(Branch(), torch.zeros(4, 784), **short)),
                  error_of(lambda: duet_torch.compare(Branch(), images, **{**short, "lr": "much"}))]
    wanted = ["ValueError: Unscriptable cannot be made TorchScript. torch.jit.trace: TracerWarning: ",
              "ValueError: example_input: got (4, 784), expected a tensor of images, (N, C, H, W)",
              "RuntimeError: duet compare ended with exit code 2: "]
    for error, start in zip(errors, wanted):
        checks[f"{start!r}: {error}"] = error.startswith(start)
    return report(checks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
