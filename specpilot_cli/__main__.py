"""`main()`: signals, and the one mapping from what happened to an exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings

from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.core.exit_codes import ExitCode


def _unknown_settings() -> None:
    known = {"SPECPILOT_SHARE", "SPECPILOT_CACHE", "SPECPILOT_CONFIG", "SPECPILOT_W12_SO", "SPECPILOT_BEST_FIRST_SO"}
    known |= {f"SPECPILOT_SGLANG_{name}" for name in ("PYTHON", "PATH", "CACHE")}
    for name in sorted({n for n in os.environ if n.startswith("SPECPILOT_")} - known):
        print(f"warning: {name} is not a setting of SpecPilot.", file=sys.stderr)


def _run() -> int:
    from specpilot_cli.app import build

    try:
        result = build()(standalone_mode=False)
    except SpecPilotError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail again
        return ExitCode.BROKEN_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception as error:  # the last resort: typer's own usage errors, and our bugs
        return _typer_or_bug(error)
    return result if isinstance(result, int) else ExitCode.OK


def _typer_or_bug(error: Exception) -> int:
    show = getattr(error, "show", None)
    code = getattr(error, "exit_code", None)
    if callable(show) and isinstance(code, int):
        show()
        return ExitCode.USAGE if code == 1 else code
    if type(error).__name__ == "Abort":
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    traceback.print_exc()
    print("error: this is a bug in SpecPilot; please report it with the lines above.", file=sys.stderr)
    return ExitCode.BUG


def main() -> None:
    """Entry point of the `specpilot` script."""
    warnings.simplefilter("ignore", DeprecationWarning)
    _unknown_settings()
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.BROKEN_PIPE
    sys.exit(int(code))


if __name__ == "__main__":
    main()
