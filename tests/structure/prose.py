#!/usr/bin/env python3
"""Checks that README.md and the pages of docs/ read like plain English.

    prose.py ROOT            prints one line per page that exceeds a limit, with the sentences concerned
    prose.py ROOT --all      prints every sentence that counts, also of pages within the limits
    prose.py --self-test     sees each rule find its sentence

Code, tables, quotations and headings don't count.
"""
import glob
import os
import re
import sys

# Rule -> the words that break it. Each has a plain word that readers know from other documentation.
RULES = {
    "if or when, not where": r"(?:^|[,;:] )[Ww]here (?!to\b|you\b|the )",
    "name the thing, not what": r"(?:^|[.;:] )(?:What|Who|Whoever)\b(?!.*\?)|\bwhat (?!is\b|are\b|happens\b|to\b|about\b|if\b|the\b)\w+",
    "name the thing, not that of": r"\b(?:that|those) of\b",
    "no 'of which' at the end": r"\bof (?:which|whom|these|it)\b|^Of (?!course)",
    "raises an error, not is an error": r"\b(?:is|are) (?:an error|errors)\b",
    "continue, start": r"\b(?:go|goes|gone|going|went) on\b|\bbeg(?:in|ins|an|un|inning)\b",
    "your own, after, also, only": r"\bof (?:one's|its|your|their) own\b|\bbehind\b|, too\b|\b(?:besides|likewise|beforehand|alone)\b",
    "say the number": r"\b(?:so|as) (?:many|much)\b(?! as\b| \w+ as\b)",
}
MOST_WORDS = 30                       # of a sentence
MOST_BREACHES, MOST_LONG = 6, 8       # per 1,000 words; per cent of the sentences
MOST_LINES = 150                      # of a page


def prose(text):
    """The text's sentences."""
    text = re.sub(r"^\s*```.*?^\s*```\s*$|<!--.*?-->", "\n", text, flags=re.S | re.M)
    text = re.sub(r"^\s*(?:[|#<>]|!\[).*$", "\n", text, flags=re.M)
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", text, flags=re.M)
    text = re.sub(r"`+[^`]*`+", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n", text.replace("**", "")):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])", " ".join(paragraph.split())):
            if len(sentence.split()) > 1:
                yield sentence


def breaches(sentence):
    """The rules that a sentence breaks."""
    return [rule for rule, words in RULES.items() for _ in re.findall(words, sentence)]


def check_page(path, text):
    """Whether a page exceeds a limit, and lines that say so and why."""
    sentences = list(prose(text))
    words = sum(len(sentence.split()) for sentence in sentences)
    long = [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS]
    broken = [(rule, sentence) for sentence in sentences for rule in breaches(sentence)]
    rate, share = 1000 * len(broken) / max(1, words), 100 * len(long) / max(1, len(sentences))
    lines = text.count("\n")
    bad = rate > MOST_BREACHES or share > MOST_LONG or lines > MOST_LINES
    return bad, [f"{path}: {rate:.1f} breaches per 1,000 words (at most {MOST_BREACHES}), {share:.0f} % of the sentences have more "
                 f"than {MOST_WORDS} words (at most {MOST_LONG}), {lines} lines (at most {MOST_LINES})",
                 *(f"  {rule}: {sentence}" for rule, sentence in broken + [("shorter", sentence) for sentence in long])]


def self_test():
    cases = {
        "if or when, not where": "Where a file is missing, it fails.",
        "name the thing, not what": "It prints what failed.",
        "name the thing, not that of": "Its size is that of a page.",
        "no 'of which' at the end": "There are files, of which it takes two.",
        "raises an error, not is an error": "Two loops are an error.",
        "continue, start": "Then it goes on.",
        "your own, after, also, only": "It stands behind the step.",
        "say the number": "It waits for so many ranks.",
    }
    missed = [rule for rule, sentence in cases.items() if breaches(sentence) != [rule]] + sorted(RULES.keys() - cases.keys())
    harmless = "Run it where you like; if it fails, see what happens, and go back as many times as you want."
    missed += breaches(harmless)
    page = "# What of it\n\nShort and good. " + "Word " * MOST_WORDS + "more.\n\n| what we | say |\n\n```\nwhere it\n```\n"
    missed += [] if check_page("planted", page)[0] and len(list(prose(page))) == 2 else ["long sentences"]
    too_long = [check_page("planted", "Short.\n" * lines)[0] for lines in (MOST_LINES, MOST_LINES + 1)]
    missed += [] if too_long == [False, True] else ["long pages"]
    print(*missed, f"{len(cases) + 3 - len(missed)} passed, {len(missed)} failed, 0 skipped", sep="\n")
    return bool(missed)


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    root = sys.argv[1]
    pages = [os.path.join(root, "README.md"), os.path.join(root, "examples/README.md"), *sorted(glob.glob(os.path.join(root, "docs/**/*.md"), recursive=True))]
    bad = 0
    for page in pages:
        if os.path.exists(page):
            with open(page, encoding="utf-8") as file:
                exceeds, lines = check_page(os.path.relpath(page, root), file.read())
            if exceeds or "--all" in sys.argv:
                print(*lines, sep="\n")
            bad += exceeds
    print(f"{len(pages) - bad} passed, {bad} failed, 0 skipped")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
