"""RL post-training of reasoning language models with verifiable rewards."""

__version__ = "0.1.0"
