"""Options are a budget: a new one is a decision, so each is listed here."""

from hardwon.algorithms.group_policy import Config
from hardwon.config import OnlineSettings, OptimizerSettings
from hardwon.workbench import SharedSettings

SHARED = """
model device dtype lora_rank gradient_checkpointing
chat_template system_prompt chat_template_kwargs prompt_template eval_prompt_template examples
generator vllm_server vllm_gpu_memory
task data eval_data columns row_function task_options reward
max_prompt_tokens max_new_tokens temperature top_p top_k stop
algorithm run seed checkpoint_every keep_checkpoints log_to
eval_problems eval_samples eval_temperature eval_top_p eval_top_k eval_max_new_tokens
"""
OPTIMIZER = """
learning_rate warmup_iterations learning_rate_schedule weight_decay adam_beta2 max_grad_norm
micro_batch_tokens
"""
ONLINE = "iterations reward_from eval_every"
GROUP_POLICY = """
prompts_per_iteration group_size updates_per_iteration epochs_per_iteration
clip_low clip_high dual_clip kl_coef mismatch_cap
amplification amplification_factor amplification_threshold amplify_by
dynamic_sampling max_rounds max_age on_shortfall overlong overlong_buffer
"""


def test_the_options_are_those_listed():
    assert set(SharedSettings.model_fields) == set(SHARED.split())
    assert set(OptimizerSettings.model_fields) == set(OPTIMIZER.split())
    assert set(OnlineSettings.model_fields) == set(ONLINE.split())
    assert set(Config.model_fields) == set((SHARED + OPTIMIZER + ONLINE + GROUP_POLICY).split())
