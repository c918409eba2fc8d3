"""All cells of the matrix."""

from __future__ import annotations

from chaos.fault import Fault
from chaos.faults import FAULTS_OF_PROCESSES
from chaos.faults_apart import FAULTS_APART
from chaos.faults_data import FAULTS_OF_DATA

STRATEGIES = ("ddp", "fsdp")
FAULTS: tuple[Fault, ...] = (*FAULTS_OF_PROCESSES, *FAULTS_OF_DATA, *FAULTS_APART)
