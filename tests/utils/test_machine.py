"""Memory of the machine and of its devices."""

import os
import pathlib

import pytest

from dualenc_jax.utils import machine

pytestmark = pytest.mark.devices(8)

PHYSICAL = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


@pytest.mark.parametrize('own,files,expected', [
    ('0::/a/b', {'a/b/memory.max': 'max', 'memory.max': 'max'}, PHYSICAL),
    ('0::/a/b', {'a/b/memory.max': '5000', 'a/memory.max': '4000'}, 4000),
])
def test_memory_of_a_machine_honours_control_groups(
    tmp_path, own, files, expected
):
  root, listing = tmp_path / 'cgroup', tmp_path / 'own'
  listing.write_text(own)
  for name, text in files.items():
    path: pathlib.Path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + '\n')
  assert machine.machine_memory(root, listing) == expected
  assert machine.machine_memory(root, tmp_path / 'absent') == PHYSICAL


def test_simulated_devices_share_the_machine():
  assert machine.device_memory() == machine.machine_memory() // 8
