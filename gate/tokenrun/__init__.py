"""The other flow: the whole token judgement without timing, `gate tokens`. Numbered like gate/run.py.

0 flow   2 scenario, plan   4 drive, folder   5 to 7 judge   8 show
"""
