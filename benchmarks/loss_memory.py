"""Memory of the losses on a mesh as XLA plans it, and what devices send.

Compiles only. Needs tests/losses on PYTHONPATH, whose programs and reader of
HLO it shares, and as many simulated devices as XLA_FLAGS says.
"""

import argparse

import hlo
import jax
import loss_programs
import meshes

from dualenc_jax import losses

LOSSES = {
    'softmax': losses.InBatchSoftmax(),
    'PAIR': losses.PAIR(),
    'SamToNe, both towers': losses.SamToNe(both_towers=True),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--batch', type=int, help='B; 1,024 a device by default')
  args = parser.parse_args()
  devices = jax.device_count()
  size = args.batch or loss_programs.SHARD * devices
  partitioner = meshes.SmallPartitioner(devices=devices)
  print('| devices, B | loss | ring | dense | sent |\n' + '|---' * 5 + '|')
  for name, loss in LOSSES.items():
    programs = {
        implementation: loss_programs.compile_gradient(
            loss, implementation, partitioner, size
        )
        for implementation in ('ring', 'dense')
    }
    ring, dense = (
        loss_programs.temporaries(program) / 2**20
        for program in programs.values()
    )
    text = programs['ring'].as_text()
    unit = 4 * size * loss_programs.DIM
    backward = hlo.sent_bytes(text, within='transpose(') / unit
    forward = hlo.sent_bytes(text) / unit - backward
    print(
        f'| {devices}, {size:,} | {name} | {ring:,.1f} MiB | {dense:,.1f} MiB'
        f' | {forward:.2f} + {backward:.2f} |',
        flush=True,
    )


if __name__ == '__main__':
  main()
