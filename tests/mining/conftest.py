"""The set that is mined and labelled, made once a file."""

import mining_set
import pytest


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  return mining_set.make(tmp_path_factory.mktemp('set'))
