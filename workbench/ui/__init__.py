"""Streamlit pages over the stored results; they read through `workbench.services.browse` and draw."""
