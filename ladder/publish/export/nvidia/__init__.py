"""Drop-in files for NVIDIA's `torch_utils/ops`: copied into an export, and never imported by this project.

Each offers the names, arguments and results of NVIDIA's file, on the exported ops. An import from `kernels` becomes one
from the exported package beside the file, and an import from here one from the file's own folder.
"""
