"""Checks whether a model can be trained exactly, or is refused. The last line of the output is one JSON object.

python scripts/check_model.py model=Qwen/Qwen3-0.6B

model     an id on the Hugging Face Hub or a folder: the model is probed as a run probes it, with and without LoRA
dtype     dtype of the weights: float32 (the default), bfloat16 or float16
Exit status: 0 exact; 1 not exact; 2 an argument or the model cannot be used.
"""

from __future__ import annotations

import json
import sys

from turnwise.console import until_stopped
from turnwise.errors import InputError
from turnwise.programs import program


@program(__doc__)
def main(arguments: list[str]) -> int:
    settings = {"dtype": "float32"} | {key: value for key, _, value in (a.partition("=") for a in arguments)}
    dtypes = ("float32", "bfloat16", "float16")
    if settings.keys() != {"model", "dtype"} or not settings["model"] or settings["dtype"] not in dtypes:
        raise InputError(f"write model=ID_OR_FOLDER, and perhaps dtype= with one of {', '.join(dtypes)}")
    from turnwise.hub import at_hand  # slow libraries are imported after the arguments have been parsed
    from turnwise.models.policy import load_policy, with_adapter
    from turnwise.rollouts.probe import probe, refusal
    from turnwise.shipped import weights_of

    named = f"model={settings['model']}"
    model, _ = load_policy(at_hand(weights_of(settings["model"]), "model"), settings["dtype"])
    difference, lora = probe(model), None
    print(f"{named}: exact" if difference is None else refusal(model, named, difference))
    if difference is None:
        try:
            adapted = with_adapter(model, rank=4, alpha=8, dropout=0.0)
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:  # zero at first, so the adapters would have no effect
                    parameter.data.normal_(0.0, 0.1)
            lora = probe(adapted) or "exact"
        except Exception as error:  # peft raises various exceptions for layers that it does not know
            lora = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"with LoRA: {lora}")
    exact = difference is None
    print(json.dumps({"model": settings["model"], "exact": exact, "why": difference or "", "lora": lora}))
    return int(not exact)


if __name__ == "__main__":
    sys.exit(until_stopped(main))
