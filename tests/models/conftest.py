"""A tiny random model for any test; tiny_models.py makes others."""

import pytest
from tiny_models import make_policy

from hardwon.models.policy import Policy


@pytest.fixture
def policy() -> Policy:
    return make_policy()
