"""The worker process that compares answers with math-verify. It reads requests from standard input and writes replies
to standard output. Each request and each reply is one line of JSON.

Any Python interpreter that has math-verify can run this file as a script, because it imports nothing from turnwise.
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
    sys.stdout = sys.stderr  # text that a library prints must not be taken for a reply
    logging.disable(logging.CRITICAL)
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError as error:
        print(json.dumps({"error": str(error)}), file=out, flush=True)
        return
    how = [LatexExtractionConfig()]  # the only extractor: the others call sympy's parse_expr, which evaluates Python

    def value(text: str) -> object:
        marked = "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text
        return parse(text if marked else f"${text}$", how, parsing_timeout=None)

    print(json.dumps({}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            # No time-out here: signals cannot interrupt every computation, so the parent kills this process instead.
            equal = verify(value(request["reference"]), value(request["answer"]), timeout_seconds=None)
        except Exception:  # catches all exceptions: an answer that breaks the parser is wrong
            equal = False
        print(json.dumps({"equal": bool(equal)}), file=out, flush=True)


if __name__ == "__main__":
    main()
