#!/usr/bin/env python3
"""Compares the man page and the completions with what the program's --help says.

    help_pages.py PROGRAM FOLDER       FOLDER: with duet.1, duet (bash) and _duet (zsh)
"""
import os
import re
import shutil
import subprocess
import sys

SUBCOMMANDS = re.compile(r"^subcommands:\n((?:  .*\n?)*)", re.I | re.M)
UNKNOWN = re.compile(r": unknown '-', expected (.*?)(?: \(see|$)", re.M)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def commands(program, words=()):
    """(words, options, subcommands) of the program and of all commands below it"""
    text = output(program, *words, "--help")
    spellings = re.findall(r"^  ((?:-{1,2}[a-zA-Z][\w-]*(?:, *)?)+)", text, re.M)
    options = set(re.findall(r"-{1,2}[a-zA-Z][\w-]*", " ".join(spellings)))
    found = SUBCOMMANDS.search(text)
    below = re.findall(r"^  (\w+)", found.group(1), re.M) if found else []
    yield words, options, below
    for word in below:
        yield from commands(program, (*words, word))


def enumerated(program, words, options):
    """(option, values) of each option that refuses a value with the ones that it takes"""
    for option in sorted(options):
        # Behind it an option that is none, so that nothing runs where "-" is fine.
        refused = subprocess.run([program, *words, option, "-", "--none"], capture_output=True, text=True, timeout=60)
        found = UNKNOWN.search(refused.stderr)
        if found:
            yield option, {value for value in re.split(", | or ", found.group(1)) if value != "a number"}


def completed(bash, *words):
    """What bash offers for the last of these words."""
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _duet; printf "%s\\n" "${COMPREPLY[@]}"'
    return set(output("bash", "-euc", script, "bash", bash, "duet", *words).split())


def check_bash(program, folder):
    """bash offers every option and command"""
    bash = os.path.join(folder, "duet")
    for words, options, below in commands(program):
        got = completed(bash, *words, "")
        if got != options | set(below):
            yield f"duet {' '.join(words)}: offers {sorted(got)}, --help has {sorted(options | set(below))}"
    for words, expected in (
        (("tr",), {"train"}),
        (("train", "--check-"), {"--check-finite"}),
        (("bench", "all_reduce", "--max"), {"--max-bytes"}),
        (("train", "--data", ""), set()),  # a file's name
        (("launch", "-n", "2", "--", "train", "--mo"), set()),
        (("train", "--mode", "d"), {"dp", "ddp"}),
        (("train", "--mode", "=", "s"), {"single"}),  # --mode=s
        (("train", "--mode", "="), {"single", "averaging", "dp", "ddp"}),
        (("train", "--model", "./net"), set()),  # a file's name
        (("compare", "--modes", "single,d"), {"single,dp", "single,ddp"}),
        (("predict", "out", "--link", "1"), {"10gbe", "100gbe"}),
        (("launch", "-n", ""), {"auto", "gpu", "cpu"}),
    ):
        if completed(bash, *words) != expected:
            yield f"duet {' '.join(words)}: offers {sorted(completed(bash, *words))}, expected {sorted(expected)}"


def check_values(program, folder):
    """bash and zsh offer the values that an option takes"""
    bash, zsh, all_options = os.path.join(folder, "duet"), os.path.join(folder, "_duet"), 0
    with open(zsh, encoding="utf-8") as file:
        functions = dict(re.findall(r"^(_duet\w*)\(\) \{\n(.*?)^\}", file.read(), re.M | re.S))
    for words, options, _ in commands(program):
        for option, values in enumerated(program, words, options):
            all_options += 1
            got = completed(bash, *words, option, "")
            offered = re.search(rf"'{option}=?\[.*:value:(?:_sequence compadd - |\()(.*?)\)?'", functions["_".join(("_duet", *words))])
            if got != values or not offered or set(offered[1].split()) != values:
                yield f"duet {' '.join(words)} {option}: offers {sorted(got)}, zsh {offered}, expected {sorted(values)}"
    if all_options < 50:
        yield f"only {all_options} options with values"


def check_man(program, folder):
    """the man page has every command and option"""
    with open(os.path.join(folder, "duet.1"), encoding="utf-8") as file:
        page = file.read()
    sections = dict(re.findall(r'^\.SH "?([^"\n]*)"?\n(.*?)(?=^\.SH|\Z)', page, re.M | re.S))
    for words, options, _ in commands(program):
        section = sections.get(" ".join(("duet", *words)) if words else "OPTIONS", "")
        entries = "\n".join(re.findall(r"^\.TP\n\.B (.*)$", section.replace("\\-", "-").replace("\\e", "\\"), re.M))
        missing = [name for name in options if not re.search(rf"(?<![\w-]){name}(?![\w-])", entries)]
        if missing:
            yield f"duet {' '.join(words)}: {missing} are missing"
    if "DUET_DATA" not in sections.get("ENVIRONMENT", ""):
        yield "no DUET_DATA among the variables"
    if shutil.which("groff"):
        run = subprocess.run(["groff", "-man", "-ww", "-z", os.path.join(folder, "duet.1")], capture_output=True, text=True)
        yield from run.stderr.splitlines()


def check_zsh(program, folder):
    """zsh completes every option and command"""
    script = '_arguments() { print -rl -- "$@" }; words=(-); source "$1" >/dev/null; "$2"; true'
    for words, options, below in commands(program):
        function = "_" + "_".join(("duet", *words))
        said = output("zsh", "-fc", script, "zsh", os.path.join(folder, "_duet"), function)
        got = set(re.findall(r"^(--?[\w-]+)=?\[", said, re.M))
        offered = re.findall(r"^1:command:\((.*)\)$", said, re.M)
        if got != options or " ".join(offered).split() != below:
            yield f"{function}: says {sorted(got)} {offered}, --help has {sorted(options)} {below}"


def main(program, folder):
    passed = failed = skipped = 0
    for check in (check_bash, check_values, check_man, check_zsh):
        if check is check_zsh and not shutil.which("zsh"):
            print("skipped: zsh is not installed")
            skipped += 1
            continue
        wrong = list(check(program, folder))
        passed += not wrong
        failed += bool(wrong)
        print("".join(f"{check.__doc__}: {line}\n" for line in wrong), end="")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
