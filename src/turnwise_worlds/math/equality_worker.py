"""The worker process that compares answers with math-verify. Requests and replies are lines of JSON (stdin, stdout).

Any Python interpreter that has math-verify can run this file as a script, because this file does not import turnwise.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

MEMORY = 2 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = sys.stdout
    sys.stdout = sys.stderr  # text that a library prints is no reply
    logging.disable(logging.CRITICAL)
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError as error:
        print(json.dumps({"error": str(error)}), file=out, flush=True)
        return
    how = [LatexExtractionConfig()]  # all other extractors call sympy's parse_expr, which evaluates Python

    def value(text: str) -> object:
        marked = "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text
        return parse(text if marked else f"${text}$", how, parsing_timeout=None)

    print(json.dumps({}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            # No time-out here: signals cannot interrupt every computation, so the parent kills this process instead.
            equal = verify(value(request["reference"]), value(request["answer"]), timeout_seconds=None)
        except Exception:  # an answer with which the parser fails is wrong
            equal = False
        print(json.dumps({"equal": bool(equal)}), file=out, flush=True)


if __name__ == "__main__":
    main()
