"""Scale on paper: what a number of texts costs to encode, to index, to pair and to search, before anything is run."""

from gemel.scale_plan.constants import Constants, committed, here
from gemel.scale_plan.making import plan
from gemel.scale_plan.question import Question
from gemel.scale_plan.result import Limit, Part, Plan, Searching

__all__ = ["Constants", "Limit", "Part", "Plan", "Question", "Searching", "committed", "here", "plan"]
