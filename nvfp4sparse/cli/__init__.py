# SPDX-License-Identifier: Apache-2.0
"""What `python -m nvfp4sparse` runs: demo, info and bench. Nothing of the library imports it."""
