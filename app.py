"""Entry point of the dashboard: `workbench dashboard`, or `streamlit run app.py`."""

import streamlit as st

from workbench.ui import page_run, page_sweep

st.set_page_config(page_title="LLM serving workbench", page_icon=":material/tune:", layout="wide")
st.navigation(
    [
        st.Page(page_sweep.page, title="Sweeps", icon=":material/tune:", url_path="sweeps", default=True),
        st.Page(page_run.page, title="Runs", icon=":material/timeline:", url_path="runs"),
    ],
    position="top",
).run()
