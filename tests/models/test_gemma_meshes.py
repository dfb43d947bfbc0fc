"""The Gemma encoder on meshes of eight devices."""

import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import train

pytestmark = [pytest.mark.nightly, pytest.mark.devices(8)]


def test_meshes_and_layouts_have_the_same_losses(tmp_path):
  losses = {}
  for name, flags in {
      'data': [],
      'fsdp': [
          '--gin_file=partitioning/fsdp.gin', '--gin.LAYOUT=@data.Padded()'
      ],
      # Fewer heads of keys, 1, than devices of the model axis.
      'model': ['--gin.MODEL_PARALLEL=2', '--gin.MICRO_BATCH_SIZE=8'],
  }.items():
    folder = tmp_path / name
    folder.mkdir()
    train.main([
        *tiny_run.gemma_flags(folder, '--gin.LOSS=@losses.SamToNe()'), *flags,
        '--gin.models.GemmaEncoder.num_kv_heads=1',
        '--gin.models.Projection.hidden=(64,)',
        '--gin_file=architectures/ade_spl.gin',
        f'--model_dir={folder / "model"}',
    ])
    losses[name] = [
        line['loss'] for line in tiny_run.logged(folder / 'model', 'train')
    ]
  for own in losses.values():
    np.testing.assert_allclose(own, losses['data'], rtol=2e-4)
