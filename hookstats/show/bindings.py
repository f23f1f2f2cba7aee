"""Binds what notebooks and `run.plot` show to the classes of records and runs."""

from __future__ import annotations

from functools import partial

from hookstats.hooks.coverage import Coverage
from hookstats.insight.comparison import RunComparison
from hookstats.records.alerts import Incidents
from hookstats.records.display import bind
from hookstats.records.record import StepRecord
from hookstats.runs.run import Run
from hookstats.runs.series import Series, SiteSeries
from hookstats.show import notebook, page
from hookstats.show.plot import Plots

bind(StepRecord, "html", notebook.record_html)
bind(Coverage, "html", notebook.coverage_html)
bind(Incidents, "html", notebook.incidents_html)
bind(Run, "html", notebook.run_html)
bind(RunComparison, "html", notebook.comparison_html)
bind(Series, "html", notebook.series_html)
bind(SiteSeries, "html", notebook.site_html)
bind(Run, "plots", Plots)
bind(Run, "report", lambda run: partial(page.write, run))
