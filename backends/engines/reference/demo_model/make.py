"""Make the demo model: ``python -m backends.engines.reference.demo_model.make --out DIR``."""

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig

from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.reference.demo_model.tokenizer import END_OF_TEXT, IM_END, save_tokenizer, train_tokenizer
from backends.engines.reference.demo_model.training import TrainingSchedule, train

SEED = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the tokenizer and the model, and write a Hugging Face directory with bfloat16 weights."""
    parser = argparse.ArgumentParser(description="Make the demo model.")
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="directory to write")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--steps", type=int, default=TrainingSchedule().steps)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)

    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(options.seed)
    save_tokenizer(tokenizer, options.out)
    model = train(tokenizer, options.seed, TrainingSchedule(steps=options.steps))
    ends = [tokenizer.token_to_id(token) for token in (IM_END, END_OF_TEXT)]
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=ends, pad_token_id=ends[1])
    model.to(torch.bfloat16).save_pretrained(options.out)


if __name__ == "__main__":
    main()
