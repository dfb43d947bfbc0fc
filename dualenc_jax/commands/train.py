"""Trains a dual encoder, or goes on from the newest checkpoint of MODEL_DIR.

  dualenc train --gin_file=runs/quickstart.gin --model_dir=my_model
"""

from collections.abc import Sequence
import time

from dualenc_jax.commands import config, runtime, training


def main(argv: Sequence[str] | None = None) -> None:
  started = time.perf_counter()
  parser = config.make_parser('train', __doc__)
  parser.add_argument('--model_dir', help='short for --gin.MODEL_DIR')
  parser.add_argument(
      '--allow_config_change', action='store_true',
      help='resume although the config differs from the one of MODEL_DIR',
  )
  runtime.add_flags(parser)
  args = config.parse_args(parser, argv)
  runtime.start(args.multihost)
  training.train(training.build(args), args.allow_config_change, started)
