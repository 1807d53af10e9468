"""Runs vLLM with JSON lines on standard input and output, in the Python environment in which vLLM is installed.

The first input line contains the settings. Each later line is either ``{"add": [{"number", "ids"}, ...]}`` or
``{"reset": true}``. An ``add`` line is answered with ``{"done": [{"number", "ids"}, ...]}`` after as many engine steps
as it takes for at least one request to finish.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # everything that vLLM prints goes to standard error
    setting = json.loads(sys.stdin.readline())

    import vllm
    from vllm import EngineArgs, LLMEngine, SamplingParams

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=setting["model"],
            dtype=setting["dtype"],
            max_model_len=setting["max_length"],
            max_num_seqs=setting["rows"],
            gpu_memory_utilization=setting.get("memory", 0.9),  # on a CPU, VLLM_CPU_KVCACHE_SPACE sets the size instead
            enable_prefix_caching=True,
            block_size=setting["block"],
            disable_log_stats=True,
        )
    )
    # Only tokens are exchanged; the benchmark decodes the text, as for every contender.
    sampling = SamplingParams(
        temperature=setting["temperature"],
        top_p=setting["top_p"],
        top_k=setting["top_k"],
        min_p=setting["min_p"],
        max_tokens=setting["max_tokens"],
        stop_token_ids=setting["stop"],
        detokenize=False,
        logprobs=0,  # those of the sampled tokens, which training needs
        ignore_eos=False,
    )

    def say(message: object) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    say({"version": vllm.__version__})
    requests = 0
    numbers: dict[str, int] = {}
    for line in sys.stdin:
        message = json.loads(line)
        if "reset" in message:
            engine.reset_prefix_cache()
            say({})
            continue
        for item in message["add"]:
            requests += 1
            numbers[str(requests)] = item["number"]
            engine.add_request(str(requests), {"prompt_token_ids": item["ids"]}, sampling)
        done: list = []
        while not done and engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    ids = list(output.outputs[0].token_ids)
                    done.append({"number": numbers.pop(output.request_id), "ids": ids})
        say({"done": done})


if __name__ == "__main__":
    main()
