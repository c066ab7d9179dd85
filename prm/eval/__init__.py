"""Measuring: pure functions, and the commands that read files and print (no torch here).

``steps`` and ``traces`` hold the metrics, ``bootstrap`` and ``measures`` their intervals,
``baselines`` what a model has to beat; ``step_report`` puts them together and ``evaluate_steps`` is
the command. Every number is an ``estimate``: value, interval, denominator.
"""
