"""What checks of a program need: the error of a call, and their outcome."""


def error_of(call):
    """Type and text of what the call throws; empty if it throws nothing."""
    try:
        call()
    except Exception as error:  # pylint: disable=broad-except
        return f"{type(error).__name__}: {error}"
    return ""


def report(checks):
    """Prints the text of each check that is false and "N passed, N failed, N skipped"; the exit status."""
    for text, good in checks.items():
        if not good:
            print("FAILED:", text)
    print(f"{sum(checks.values())} passed, {len(checks) - sum(checks.values())} failed, 0 skipped")
    return 0 if all(checks.values()) else 1
