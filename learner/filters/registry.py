"""Filter rules by their name in the configuration."""

from collections.abc import Mapping

from learner.filters.keep_all import KeepAll
from learner.filters.selection import GroupFilter
from learner.filters.variance_mass import VarianceMass

FILTERS: Mapping[str, type[GroupFilter]] = {"variance_mass": VarianceMass, "none": KeepAll}
