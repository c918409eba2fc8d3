"""One S3 server for tests/contract/test_object_store_*.py; tests/order.py keeps these together."""

import pytest

from support.fakes.s3_server import started

s3_server = pytest.fixture(scope="session", name="s3_server")(started)
