#!/usr/bin/env python3
"""Fails where a kernel is launched with more threads than its __launch_bounds__ say, which only a GPU would refuse.

    launch_bounds.py FILE...        sources with kernels, and headers with constants

A planted launch of too many threads is seen to be found.
"""
import os
import re
import sys

CONSTANTS = re.compile(r"constexpr \w+ (k\w+ = [^;]+);")
CONSTANT = re.compile(r"(k\w+) = ([^,]+)")
KERNEL = re.compile(r"(template <[^>]*>\s+)?__global__ void __launch_bounds__\(([^)]*)\)\s+(\w+)\(")
LAUNCH = re.compile(r"\blaunch(_rows)?\((\w+)(?:<[^>]*>)?,")
PLANTED = """
constexpr unsigned kFew = 64;
__global__ void __launch_bounds__(kFew * 2) planted_kernel(float* x) {}
void f() { launch(planted_kernel, dim3(1), dim3(kFew * 4), 0, stream, x); }
"""


def arguments(text, begin):
    """The arguments of a call whose first one starts at `begin`."""
    depth, found, start = 0, [], begin
    for at in range(begin, len(text)):
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
        if depth < 0 or (depth == 0 and text[at] == ","):
            found.append(text[start:at].strip())
            start = at + 1
        if depth < 0:
            break
    return found


def most(expression, constants):
    """The largest value of an expression of constants; of a conditional one, of its two results."""
    expression = re.sub(r"^dim3\((.*)\)$", r"\1", expression)
    if "?" in expression:
        return max(most(part.strip(), constants) for part in expression.split("?", 1)[1].split(":"))
    if "," in expression:
        raise ValueError(f"more than one dimension: {expression}")
    named = re.sub(r"k[A-Z]\w*", lambda name: str(most(constants[name[0]], constants)), expression)
    if not re.fullmatch(r"[0-9 +*/()-]+", named):
        raise ValueError(f"not a constant: {expression}")
    return int(eval(named))  # digits and operators only


def bound_of(parameters, bound, constants):
    """The threads of a kernel's bound; one with a parameter of the template in it follows the launch."""
    if set(re.findall(r"\w+", bound)) & set(re.findall(r"\w+", parameters)):
        return sys.maxsize
    return most(bound, constants)


def violations(texts):
    """(launches looked at, lines about those with too many threads); `texts` by name."""
    looked_at, found = 0, []
    for file, text in texts.items():
        # A file's own constants hide those of others.
        lines = [line for other in (*texts.values(), text) for line in CONSTANTS.findall(other)]
        constants = {name: value for line in lines for name, value in CONSTANT.findall(line)}
        bounds = {name: bound_of(parameters, bound.split(",")[0], constants)
                  for parameters, bound, name in KERNEL.findall(text)}
        for call in LAUNCH.finditer(text):
            kernels = [call[2]]
            if call[2] not in bounds:  # a variable: one of the kernels that it is set to
                set_to = re.findall(rf"\b{call[2]} =([^;]*);", text[: call.start()])
                kernels = [name for name in re.findall(r"\w+_kernel", set_to[-1]) if name in bounds] if set_to else []
            if not kernels:
                continue  # launch.h itself
            threads = most(arguments(text, text.index("(", call.start()) + 1)[3 if call[1] else 2], constants)
            looked_at += 1
            found += [f"{file}: {name} is launched with {threads} threads, its bound is {bounds[name]}"
                      for name in kernels if threads > bounds[name]]
    return looked_at, found


def main(files):
    if violations({"planted": PLANTED}) != (1, ["planted: planted_kernel is launched with 256 threads, its bound is 128"]):
        print("FAILED: the planted launch was not found")
        return 1
    texts = {os.path.basename(file): open(file, encoding="utf-8").read() for file in files}
    looked_at, found = violations(texts)
    print(*found, sep="\n")
    print(f"{looked_at} launches")
    return 1 if found or looked_at == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
