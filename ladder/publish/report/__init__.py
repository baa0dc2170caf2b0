"""The report of one machine and workload: one self-contained page that is made from result files.

`inputs` chooses the files. `sections` (of a ladder's run) and `studies` (of the other commands) have a function for
each section of the page, and `page` lists them in their order. A new section is a new function in that list.
"""
