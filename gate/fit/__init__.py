"""`gate fit`: what a checkpoint needs of a GPU's memory, from its headers alone, beside what a real start used.

1  amounts with a unit                amount
2  sizes of the model                 sizes
3  what either server needs           need
4  the largest that fits              largest
5  what a run used                    used
6  records, text, the flow            record, text, flow
"""
