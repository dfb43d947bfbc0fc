"""How the recipes of these tests run their stages."""

import jax
import pytest

from dualenc_jax.commands import cli, recipe


@pytest.fixture
def in_process(monkeypatch):
  """Stages run in this process, which has imported all that they need."""

  def execute(search_paths, argv):
    status = cli.main(
        [*argv, *(f'--gin_search_paths={path}' for path in search_paths)]
    )
    jax.clear_caches()
    return status

  monkeypatch.setattr(recipe, '_execute', execute)
