"""Flags and macros of stopping and saving, refused where they are off."""

import pytest

from dualenc_jax.commands import config, model_dir, train
from dualenc_jax.errors import UserError


def asked(*argv):
  return config.parse_args(train.make_parser(), ['--model_dir=m', *argv])


def test_a_time_to_stop_is_hours_and_minutes():
  assert asked().stop_after is None
  assert asked('--stop_after=03:55').stop_after == (3 * 60 + 55) * 60
  assert asked('--stop_after=100:00').stop_after == 360_000
  assert asked('--stop_after=0:00:30').stop_after == 30
  for text in ('4', '1:60', '00:00', '-1:00', '1:2', 'x'):
    with pytest.raises(UserError, match=f'--stop_after is {text}; expected h'):
      asked(f'--stop_after={text}')


@pytest.mark.parametrize(
    ('binding', 'words'),
    [
        ('CHECKPOINT_EVERY_HOURS = 0', 'is 0; expected a number of hours abov'),
        ('CHECKPOINT_EVERY_HOURS = "x"', "is 'x'; expected a number of hours"),
        ('SKIP_NON_FINITE = -1', 'SKIP_NON_FINITE is -1; expected 0 or more'),
        ('SKIP_NON_FINITE = 1.5', 'SKIP_NON_FINITE is 1.5; expected a whole'),
        ('LR_MULTIPLIERS = ((".*", "x"),)', "holds .*'x'.; expected pairs"),
        ('LR_MULTIPLIERS = ((".*", -1),)', 'holds .*-1.; expected pairs'),
        ('LR_MULTIPLIERS = ((".*", 1e999),)', 'holds .*inf.; expected pai'),
    ],
)
def test_a_macro_that_is_off_is_named(binding, words):
  bindings = ['MODEL_DIR = "m"', binding]
  with pytest.raises(UserError, match=words):
    model_dir.build_experiment(['runs/quickstart.gin'], bindings, [])
