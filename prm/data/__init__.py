"""Traces: the record, files of any format, labels, and splits by task (no torch here).

``trace`` is the record; ``files`` reads and writes it (over ``sources``, ``json_text`` and
``formats``) and counts oddities in ``diagnostics``; ``labels`` says what is known about steps.
"""
