"""The outcome of a program's checks."""


def report(checks):
    """Prints the text of each check that is false and "N passed, N failed, N skipped"; the exit status."""
    for text, good in checks.items():
        if not good:
            print("FAILED:", text)
    print(f"{sum(checks.values())} passed, {len(checks) - sum(checks.values())} failed, 0 skipped")
    return 0 if all(checks.values()) else 1
