#!/usr/bin/env python3
"""Makes the man page and the shells' completions from what `duet --help` and its commands' --help say.

    help_pages.py man|bash|zsh PROGRAM        to the standard output
"""
import os
import re
import shlex
import subprocess
import sys

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs/reference/environment.md")
SECTION = re.compile(r"(\w+):$")  # of positionals, subcommands or a group of options
# "  -n,--nproc INT=1     meaning"; a long name stands alone, and lines that go on are indented further.
ENTRY = re.compile(r"  (\S(?:\S| (?! ))*)(?: {2,}(.*))?$")
TAKES_FILE = re.compile(r"\b(file|files|directory)\b")
VALUES = re.compile(r"\. Values: (\S.*)$")
SEVERAL = re.compile(r"separated by commas")


def said(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


class Entry:
    """An option, a positional or a subcommand."""

    def __init__(self, spelling, meaning):
        self.spelling, self.meaning = spelling, meaning
        self.names = spelling.split(" ")[0].split(",")
        self.takes_value = " " in spelling
        self.takes_file = self.takes_value and bool(TAKES_FILE.search(meaning))
        found = VALUES.search(meaning)
        self.values = re.split(", | or ", found.group(1)) if found else []
        self.takes_several = bool(SEVERAL.search(meaning))


class Command:
    """What `duet WORDS --help` says, and the commands below it."""

    def __init__(self, program, words=()):
        self.name = " ".join(("duet", *words))
        sections = {"before": []}
        section = "before"
        for line in re.sub(r"^( +-\w), +--", r"\1,--", said(program, *words, "--help"), flags=re.M).splitlines():
            heading, entry = SECTION.match(line), ENTRY.match(line)
            if heading:
                section = heading.group(1)
                sections[section] = []
            elif section == "before":
                sections[section].append(line)
            elif entry:
                sections[section].append([entry.group(1), entry.group(2) or ""])
            elif line.strip():
                sections[section][-1][1] += " " + line.strip()
        before = "\n".join(sections["before"])
        self.about, self.usage = (" ".join(part.split()) for part in re.split(r"(?i)usage: ?\S*?(?=duet)", before, 1))
        del sections["before"]
        self.groups = {name: [Entry(spelling, meaning.strip()) for spelling, meaning in entries]
                       for name, entries in sections.items()}
        self.positionals, subcommands = (self.groups.pop(name, []) for name in ("Positionals", "Subcommands"))
        self.options = [option for group in self.groups.values() for option in group]
        self.below = [Command(program, (*words, entry.names[0])) for entry in subcommands]

    def all(self):
        return [self] + [command for below in self.below for command in below.all()]

    def last_word(self):
        return self.name.split()[-1]


def variables():
    """(name, meaning) from the documentation's table of environment variables."""
    with open(PAGE, encoding="utf-8") as file:
        table = file.read().split("| variable | meaning |\n|---|---|\n")[1].split("\n\n")[0]
    return [row.replace("`", "").strip("| ").split(" | ", 1) for row in table.splitlines()]


def roff(text):
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"))


def man(duet, version):
    def entries(pairs):
        return [line for name, meaning in pairs for line in (".TP", ".B " + roff(name), roff(meaning))]

    lines = [f'.TH DUET 1 "" "duet {version}" "User Commands"', ".SH NAME"]
    lines += ["duet \\- data\\-parallel training of neural networks, over threads or processes", ".SH SYNOPSIS"]
    lines += [line for command in duet.below for line in (".br", roff(command.usage))]
    lines += [".SH DESCRIPTION", roff(duet.about)]
    for command in duet.all():
        lines += [".SH OPTIONS"] if command is duet else [f'.SH "{roff(command.name)}"', roff(command.about)]
        lines += entries((entry.spelling, entry.meaning) for entry in command.positionals)
        for group, options in command.groups.items():
            lines += [] if group == "Options" else [f".SS {group}"]
            lines += entries((entry.spelling, entry.meaning) for entry in options)
    lines += ['.SH "EXIT STATUS"', "0; 1 for an error; 2 for a wrong command line; 130 after SIGINT, 143 after SIGTERM."]
    return lines + [".SH ENVIRONMENT"] + entries(variables())


def bash(duet, _):
    lines = ["# Completion of duet's command line for bash."]
    lines += ["_duet() {", "  local cur=${COMP_WORDS[COMP_CWORD]} command=duet words= values= i", "  COMPREPLY=()"]
    lines += ["  for ((i = 1; i <= COMP_CWORD; ++i)); do", '    case "$command" in']
    for command in duet.all():
        words = [name for option in command.options for name in option.names]
        values = [name for option in command.options if option.takes_value for name in option.names]
        below = [below.last_word() for below in command.below]
        lines += [f"      '{command.name}')", f"        words='{' '.join(words + below)}'"]
        lines += [f"        values=' {' '.join(values)} '", f"        commands=' {' '.join(below)} ' ;;"]
    lines += ["    esac", "    [ $i = $COMP_CWORD ] && break"]
    lines += ["    # Behind -- stand a program and its arguments.", '    [ "${COMP_WORDS[i]}" = -- ] && return']
    lines += ['    case "$commands" in *" ${COMP_WORDS[i]} "*) command+=" ${COMP_WORDS[i]}" ;; esac', "  done"]
    lines += ["  # bash cuts --name=value at the =.", "  local option=${COMP_WORDS[COMP_CWORD - 1]} before="]
    lines += ["  [ \"$cur\" = = ] && cur="]
    lines += ["  [ \"$option\" = = ] && option=${COMP_WORDS[COMP_CWORD - 2]}", '  case "$command $option" in']
    for command in duet.all():
        for option in command.options:
            if option.values:
                patterns = "|".join(f"'{command.name} {name}'" for name in option.names)
                several = "; [[ $cur = *,* ]] && before=${cur%,*}," if option.takes_several else ""
                lines += [f"    {patterns}) words='{' '.join(option.values)}' values={several} ;;"]
    lines += ["  esac", '  case "$values" in *" $option "*) return ;; esac']
    lines += ['  COMPREPLY=($(compgen -P "$before" -W "$words" -- "${cur#"$before"}")) || true', "}"]
    return lines + ["complete -o default -F _duet duet  # where it returns nothing, names of files"]


def zsh_arguments(command):
    """What zsh's _arguments takes: --name=[meaning]:value:_files."""
    for option in command.options:
        meaning = re.sub(r"([\[\]:\\])", r"\\\1", option.meaning.split(";")[0].split(". ")[0])
        words = " ".join(option.values)
        among = f"_sequence compadd - {words}" if option.takes_several else f"({words})"
        action = among if words and not option.takes_file else "_files" if option.takes_file else " "
        value = f":value:{action}" if option.takes_value else ""
        for name in option.names:
            equals = "=" if option.takes_value and name.startswith("--") else ""
            yield shlex.quote(f"{name}{equals}[{meaning}]{value}")
    if command.below:
        yield shlex.quote(f"1:command:({' '.join(below.last_word() for below in command.below)})")
        yield "'*::argument:->below'"
    elif command.positionals and command.positionals[0].spelling.endswith(" FILE"):
        yield from (f"'{place}:file:_files'" for place, _ in enumerate(command.positionals, 1))
    elif command.positionals:  # a program and its arguments
        yield "'*::program:_normal'"


def zsh(duet, _):
    lines = ["#compdef duet"]
    for command in reversed(duet.all()):
        function = "_" + command.name.replace(" ", "_")
        lines += [f"{function}() {{", "  local state", "  _arguments -C \\"]
        lines += ["    " + " \\\n    ".join(zsh_arguments(command))]
        if command.below:
            lines += [f"  [[ $state = below ]] && (( $+functions[{function}_$words[1]] )) && {function}_$words[1]"]
        lines += ["}"]
    return lines + ['_duet "$@"']


def main(kind, program):
    makers = {"man": man, "bash": bash, "zsh": zsh}
    print("\n".join(makers[kind](Command(program), said(program, "--version").split()[-1])))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("man", "bash", "zsh"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
