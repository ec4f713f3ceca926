"""Facts of stored studies and runs, and their drawing: matplotlib figures, Markdown and HTML."""
