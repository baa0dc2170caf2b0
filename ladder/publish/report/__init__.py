"""The report of one machine and workload: one self-contained page that is made from result files.

`inputs` chooses the files, and `page` has a function for each section.
"""
