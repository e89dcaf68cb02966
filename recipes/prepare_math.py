"""Write MATH as the recipes want it: `python recipes/prepare_math.py FOLDER`.

7,500 training and 5,000 test problems (Hendrycks et al., 2021) with TRL's columns: `prompt`, which asks for
the answer in a box, and `solution`, whose box holds the answer. Needs hardwon[datasets] and access to the
Hugging Face hub, or local copies with columns `problem` and `solution`:
`--train FILE.parquet --test FILE.parquet`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

SOURCE = "DigitalLearningGmbH/MATH-lighteval"
REQUEST = "\n\nReason step by step, and put the final answer into \\boxed{}."


def load(source: str, split: str) -> Dataset:
    if source.endswith(".parquet"):
        return load_dataset("parquet", data_files=source, split="train")
    return load_dataset(source, split=split)


def convert(rows: Dataset) -> Dataset:
    """Prompt and solution of each row. ValueError if a column is missing."""
    missing = [name for name in ("problem", "solution") if name not in rows.column_names]
    if missing:
        raise ValueError(f"columns {', '.join(missing)} are missing; found {', '.join(rows.column_names)}")

    def one(row: dict[str, Any]) -> dict[str, str]:
        return {"prompt": row["problem"].strip() + REQUEST, "solution": row["solution"]}

    return rows.map(one, remove_columns=rows.column_names)


def main() -> None:
    parser = argparse.ArgumentParser(description="Data for the recipes on MATH")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", default=SOURCE, help="data set or .parquet file (default: %(default)s)")
    parser.add_argument("--test", default=SOURCE, help="data set or .parquet file (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for source, split in ((arguments.train, "train"), (arguments.test, "test")):
        rows = convert(load(source, split))
        rows.to_parquet(str(arguments.folder / f"math-{split}.parquet"))
        print(f"math-{split}: {len(rows)} problems")


if __name__ == "__main__":
    main()
