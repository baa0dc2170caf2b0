"""The sections of the report, a file each; `ladder.publish.report.section` says what such a file holds."""
