"""Filter rules by their name in the configuration."""

from collections.abc import Mapping

from learner.filters.fraction import Fraction
from learner.filters.keep_all import KeepAll
from learner.filters.min_p import MinP
from learner.filters.selection import GroupFilter
from learner.filters.std_linear import StdLinear
from learner.filters.std_softmax import StdSoftmax
from learner.filters.top_k import TopK
from learner.filters.variance_mass import VarianceMass

FILTERS: Mapping[str, type[GroupFilter]] = {
    "variance_mass": VarianceMass,
    "none": KeepAll,
    "fraction": Fraction,
    "top_k": TopK,
    "min_p": MinP,
    "std_linear": StdLinear,
    "std_softmax": StdSoftmax,
}
