"""Seconds for a step, from the shape of its batch: fitted operator models put together for a model and a GPU.

`physics` holds the formulas, `operators` the fitted models (formula x learned correction) and their profiles,
`collectives` the all-reduce tables, `step` the sum over a step. No torch and no clock here.
"""
