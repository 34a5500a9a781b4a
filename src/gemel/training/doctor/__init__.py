"""The doctor before the first step: what is wrong or odd about training data, one idea a file."""

from gemel.training.doctor.diagnosis import Diagnosis, Finding
from gemel.training.doctor.examine import examine

__all__ = ["Diagnosis", "Finding", "examine"]
