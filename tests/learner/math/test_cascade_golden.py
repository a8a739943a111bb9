import json
from typing import Any

import pytest

from learner.diagnostics.cascade import CascadeMeasurement, CascadeTracker
from tests.learner.math.golden_files import assert_close, golden

FILE = golden("cascade")


@pytest.mark.parametrize("case", FILE["cases"], ids=lambda case: case["name"])
def test_the_cascade_report_matches_the_golden_file(case: dict[str, Any]) -> None:
    tracker = CascadeTracker()
    explored: list[int] = []
    propagated: list[int] = []
    columns = zip(case["E"], case["L"], case["step_entropy"], case["success"], case["osc_10"], strict=True)
    for index, (early, late, step, success, oscillation) in enumerate(columns):
        reading = tracker.observe(
            CascadeMeasurement(
                early_entropy=early,
                late_entropy=late,
                step_entropy=step,
                success=success,
                num_episodes=case["panel_episodes_per_measurement"],
            )
        )
        tracker = CascadeTracker.from_state(json.loads(json.dumps(tracker.to_state())))
        explored += [index] if reading.explore_alarm else []
        propagated += [index] if reading.propagate_alarm else []
        if oscillation is None:
            assert reading.oscillation is None
        else:
            assert_close(reading.oscillation or 0.0, oscillation, FILE["tolerance_abs"])
    assert_close(tracker.oscillation.value or 0.0, case["osc_ref"], FILE["tolerance_abs"])
    assert_close(tracker.early.value or 0.0, case["E_median_first_10"], FILE["tolerance_abs"])
    low, high = tracker.success_interval()
    assert_close(low, case["success_interval_first_10"][0], FILE["tolerance_abs"])
    assert_close(high, case["success_interval_first_10"][1], FILE["tolerance_abs"])
    assert next(iter(explored), None) == case["cascade_explore_first_fires_at"]
    assert next(iter(propagated), None) == case["cascade_propagate_first_fires_at"]
