"""Why an image cannot be used, by the names that users see in the reason of a job."""

from __future__ import annotations

from typing import ClassVar

_LONGEST = 500


class ImageProblem(Exception):
    """The gang cannot start with its image. `user_fault`: nor can it elsewhere, as submitted."""

    user_fault: ClassVar[bool] = False
    name: ClassVar[str] = "cannot be used"

    def __init__(self, image: object, detail: str) -> None:
        super().__init__(f"image {self.name}: {image}: {_one_line(detail)}")


class ImageNotFound(ImageProblem):
    """The registry has no such repository, tag or digest."""

    user_fault = True
    name = "not found"


class ImageDenied(ImageProblem):
    """The registry wants other credentials, or these may not read the image."""

    user_fault = True
    name = "access denied"


class ImageDamaged(ImageProblem):
    """Bytes that came differ from their digest. They were deleted."""

    name = "digest mismatch"


class ImageRefused(ImageProblem):
    """The image is not one that can be run: its format, or what a layer holds."""

    user_fault = True
    name = "refused"


class NoPlatform(ImageProblem):
    """It has nothing for this node's processor."""

    user_fault = True
    name = "platform mismatch"


class NodeDiskFull(ImageProblem):
    """The node's disk, or what it may have for images, is too small."""

    name = "disk full"


class RegistryAway(ImageProblem):
    """The registry does not answer, or asks to come later."""

    name = "registry away"


class DevicesRefused(ImageProblem):
    """The node's files of CDI do not say what the gang needs for its GPUs."""

    name = "devices refused"


class NoImagesHere(ImageProblem):
    """The node's agent cannot run images."""

    name = "not possible on this node"


def _one_line(text: str) -> str:
    """Short and printable: images and registries choose parts of it, such as names of files."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(char if char.isprintable() else "?" for char in short)
