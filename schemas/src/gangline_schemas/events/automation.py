"""gangline.automation: what users ask of studies, pipelines and models. Submitters write here."""

from __future__ import annotations

from typing import ClassVar

from gangline_schemas.base import Event
from gangline_schemas.limits import User
from gangline_schemas.study_file import StudyId, StudySpec


class StudyRequest(Event):
    """The base of all requests to run a study. The same `study_id` and spec are one request."""

    study_id: StudyId
    spec: StudySpec
    user: User = "unknown"


class StudyStopRequest(Event):
    """The base of all requests to end a study."""

    study_id: StudyId
    user: User = "unknown"


class StudySubmitted(StudyRequest):
    """Run this study. The same `study_id` again with the same spec is the same request."""

    type: ClassVar[str] = "study.submitted"


class StudyStopRequested(StudyStopRequest):
    """End this study: no trial starts any more, and those that run are stopped."""

    type: ClassVar[str] = "study.stop.requested"
