"""Write DAPO-Math-17K and AIME 2024 as run.sh wants them: `python prepare_data.py FOLDER`.

Both are published in verl's own columns (prompt, data_source, reward_model.ground_truth). The published
training file repeats every problem many times over, which would undo "each prompt once an epoch"; here
each prompt is kept once. Needs hardwon[datasets] and access to the Hugging Face hub, or local copies:
`--train FILE.parquet --test FILE.parquet`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from datasets import Dataset, load_dataset

TRAIN, TEST = "BytedTsinghua-SIA/DAPO-Math-17k", "BytedTsinghua-SIA/AIME-2024"
COLUMNS = ("prompt", "data_source", "reward_model")


def load(source: str) -> Dataset:
    if source.endswith(".parquet"):
        return load_dataset("parquet", data_files=source, split="train")
    return load_dataset(source, split="train")


def once_each(rows: Dataset) -> Dataset:
    """The first row of every prompt. ValueError if a column of verl's is missing or an answer is empty."""
    missing = [name for name in COLUMNS if name not in rows.column_names]
    if missing:
        raise ValueError(f"columns {', '.join(missing)} are missing; found {', '.join(rows.column_names)}")
    first: dict[str, int] = {}
    for index, prompt in enumerate(rows["prompt"]):
        first.setdefault(json.dumps(prompt, sort_keys=True), index)
    kept = rows.select(sorted(first.values()))
    for index, answer in enumerate(kept["reward_model"]):
        if not str(answer["ground_truth"]).strip():
            raise ValueError(f"row {index} has an empty reward_model.ground_truth")
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description="Data for recipes/verl/run.sh")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", default=TRAIN, help="data set or .parquet file (default: %(default)s)")
    parser.add_argument("--test", default=TEST, help="data set or .parquet file (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for source, name in ((arguments.train, "dapo-math-17k"), (arguments.test, "aime-2024")):
        rows = load(source)
        kept = once_each(rows)
        kept.to_parquet(str(arguments.folder / f"{name}.parquet"))
        print(f"{name}: {len(kept)} prompts of {len(rows)} rows")


if __name__ == "__main__":
    main()
