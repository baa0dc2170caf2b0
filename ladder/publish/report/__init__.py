"""The report of one machine and workload: one self-contained page that is made from result files.

`found` chooses the files, each file of `sections` makes a section, `page` joins them. A new section is a new file of
`sections`: nothing else needs an edit.
"""
