"""6 Calibration: what equal arms do on a host, from A/A gates, and when a run may be judged by it.

record      a band: what the history says and what it is valid for
key         what a history is valid for, and in what two of them differ
history     the A/A gates under a results folder
fit         judged A/A gates -> band
apply       band and run -> the prior of each cell, or why the band does not fit
calibrate   the command: run what is missing, fit, write
"""
