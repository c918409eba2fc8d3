"""Where clouds answer a machine about itself, and give out its rights."""

from __future__ import annotations

ADDRESSES = (
    *("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200"),
    *("169.254.170.2", "169.254.170.23", "fd00:ec2::23"),
)
"""Of the metadata services of AWS, Google Cloud, Azure, Oracle and Alibaba Cloud; and where the
agents of ECS and EKS give out the rights of a container."""
