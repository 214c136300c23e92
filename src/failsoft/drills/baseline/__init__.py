"""The naive platform of the reports, to be beaten."""
