"""What boto3 raises, in the store's words."""

from __future__ import annotations

import pytest
from botocore.exceptions import FlexibleChecksumError

from gangline_storage.retry import TransientError
from gangline_storage.s3_client import s3_errors


def test_bytes_that_differ_from_what_was_announced_are_asked_for_again() -> None:
    with pytest.raises(TransientError, match="did not match"), s3_errors("get a", "bucket"):
        raise FlexibleChecksumError(error_msg="Expected checksum x did not match y")
