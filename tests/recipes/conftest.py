"""How the recipes of these tests run their stages."""

import os

import pytest

from dualenc_jax.cli import main as cli, recipe


@pytest.fixture
def in_process(monkeypatch):
  """Stages run in this process, which has imported all that they need."""

  def execute(search_paths, argv):
    paths = [f'--gin_search_paths={path}' for path in search_paths]
    return cli.main([*argv, *paths])

  monkeypatch.setattr(recipe, '_execute', execute)
  cores = os.sched_getaffinity(0)
  yield
  os.sched_setaffinity(0, cores)
