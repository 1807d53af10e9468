"""The process that holds math-verify: a request a line on standard input, a reply a line on standard output.

It is run as a script, by whatever interpreter has math-verify, and imports nothing of turnwise.
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
    sys.stdout = sys.stderr  # what a library prints is no reply
    logging.disable(logging.CRITICAL)
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError as error:
        print(json.dumps({"error": str(error)}), file=out, flush=True)
        return
    how = [LatexExtractionConfig()]  # the other extractors end in sympy's parse_expr, which evaluates Python

    def value(text: str) -> object:
        marked = "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text
        return parse(text if marked else f"${text}$", how, parsing_timeout=None)

    print(json.dumps({}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            # None: this process is killed from outside, since signals cannot interrupt every computation
            equal = verify(value(request["reference"]), value(request["answer"]), timeout_seconds=None)
        except Exception:  # whatever an answer does to the parser, it is then not the right one
            equal = False
        print(json.dumps({"equal": bool(equal)}), file=out, flush=True)


if __name__ == "__main__":
    main()
