"""DynamicReplayBuffer on the real TransferQueue and Ray, whose names and scores it reads; prints its batch.

Prompts 0 and 1 are all correct and all wrong; every other one has two right answers of four.
"""

from __future__ import annotations

import json

import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from hardwon.integrations.verl_sampler import DynamicReplayBuffer

SCORES = {0: [1.0] * 4, 1: [0.0] * 4}
submitted = 0


def put_prompt(number: int) -> None:
    """A finished prompt with four responses of 3, 4, 5 and 6 tokens, in the form of verl's agent loop."""
    uid, scores = f"u{number:02}", SCORES.get(number, [1.0, 0.0, 0.0, 1.0])
    fields = [
        {"rm_scores": torch.tensor([0.0] * (2 + s) + [score]), "responses": torch.arange(3 + s)}
        for s, score in enumerate(scores)
    ]
    tq.kv_batch_put(
        keys=[f"{uid}_{s}_0" for s in range(4)],
        partition_id="train",
        tags=[{"status": "success", "response_len": 3 + s} for s in range(4)],
        fields=list_of_dict_to_tensordict(fields),
    )
    tag = {"is_prompt": True, "status": "finished", "global_steps": 1}
    tq.kv_batch_put(keys=[uid], partition_id="train", tags=[tag])


def submit(count: int) -> int:
    global submitted
    for number in range(submitted, submitted + count):
        put_prompt(number)
    submitted += count
    return count


def main() -> None:
    # Logical CPUs: the queue's actors ask for one each.
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", ["transfer_queue.backend.SimpleStorage.num_data_storage_units=1"])
    OmegaConf.resolve(config.transfer_queue)
    tq.init(config.transfer_queue)
    buffer = DynamicReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={},
        poll_interval=0.1,
        refill_fn=submit,
    )
    submit(4)
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=4)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    left = sorted(key for key in tq.kv_list()["train"] if "_" not in key)
    print("RESULT", json.dumps({"keys": sorted(batch.keys), "metrics": metrics, "left": left}))
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
