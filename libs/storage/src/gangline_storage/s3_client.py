"""The boto3 client with bounded waits, and what its errors mean to a caller of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from urllib3.exceptions import HTTPError

from gangline_storage.errors import NotFound, StoreError, StoreFull
from gangline_storage.retry import TransientError
from gangline_storage.s3_options import S3Credentials, S3Options

_THROTTLED = frozenset(
    {
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_FULL = frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})
_PASSING = (408, 429)


class PreconditionFailedError(Exception):
    """S3 answered 412."""


class NoSuchUploadError(Exception):
    """S3 knows no such multipart upload (any more)."""


class RangeBeyondEndError(Exception):
    """S3 answered 416."""


def given(answer: Mapping[str, Any], name: str) -> Any:
    """A field that S3 always gives. Raises TransientError: a proxy answered with a page."""
    if name not in answer:
        raise TransientError(f"the answer is not S3's: it has no {name}")
    return answer[name]


def make_client(
    endpoint: str | None, region: str | None, credentials: S3Credentials | None, options: S3Options
) -> Any:
    """A thread-safe client that itself retries nothing: the store's own retry is visible."""
    session = boto3.session.Session()
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region or session.region_name or "us-east-1",
        aws_access_key_id=credentials.access_key if credentials else None,
        aws_secret_access_key=credentials.secret_key if credentials else None,
        config=Config(
            signature_version="s3v4",  # of presigned URLs, too
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.read_timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=32,
            # A server of one's own has no wildcard name for its buckets.
            s3={"addressing_style": "path" if endpoint else "auto"},
        ),
    )


@contextmanager
def s3_errors(what: str, bucket: str) -> Iterator[None]:
    """Turn what boto3 raises in the block into the store's errors."""
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise StoreError(
            f"{what}: no S3 credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    except ClientError as error:
        raise _meaning(error, what, bucket) from error
    except (
        BotoConnectionError,
        # Not the bytes that were announced: lost on their way, or overwritten while being read.
        FlexibleChecksumError,
        HTTPClientError,
        IncompleteReadError,
        ResponseStreamingError,
        HTTPError,
        OSError,
    ) as error:
        raise TransientError(_one_line(error)) from error
    except BotoCoreError as error:
        raise StoreError(f"{what}: {_one_line(error)}") from error
    except RecursionError:  # botocore follows redirects of S3's regions
        raise StoreError(
            f"{what}: the S3 server redirects; give the endpoint and region that it redirects to"
        ) from None


def _meaning(error: ClientError, what: str, bucket: str) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = str(error.response.get("Error", {}).get("Message", ""))[:200]
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    verdicts: tuple[tuple[bool, Exception], ...] = (
        (code == "NoSuchBucket", StoreError(f"{what}: there is no bucket {bucket!r}; create it")),
        (code == "NoSuchUpload", NoSuchUploadError(what)),
        (code in _FULL, StoreFull(f"{what}: the S3 server has no room ({code})")),
        (code in _THROTTLED, TransientError(f"{status} {code}")),
        (
            # An answer to HEAD has no body, so S3's has no code either.
            status == 404 and code in {"", "404"} and error.operation_name != "HeadObject",
            TransientError("404 without S3's error: another server answered"),
        ),
        (status == 404, NotFound(f"{what}: no such object in bucket {bucket!r}")),
        (status == 412, PreconditionFailedError(what)),
        (status == 416, RangeBeyondEndError(what)),
        (status in _PASSING or status >= 500, TransientError(f"{status} {code}")),
        (
            status in (401, 403),
            StoreError(
                f"{what}: S3 refused access to bucket {bucket!r} ({code or status}); "
                "check the credentials and the bucket's policy"
            ),
        ),
    )
    for applies, meaning in verdicts:
        if applies:
            return meaning
    return StoreError(f"{what}: S3 answered {status} {code} {message}".rstrip())


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
