"""The other flow: two output lengths per arm -> a table of kernels per decode step -> levers that add up to the delta.

1  what is asked for                 flow
2  command lines                     commands
3  what must hold before             tools
4  raw traces                        capture, nsys, chrome, activity, store
5  what must not be believed         checks/
6  numbers                           difference, families, census, modules
7  attribution                       levers
8  what is shown                     table, markdown, plots
"""
