"""Seconds for a step, from the shape of its batch: fitted operator models put together for a model and a GPU.

`physics` holds the formulas, `operators` the fitted models (formula x learned correction) and their profiles,
`collectives` the all-reduce tables, `end_to_end` what whole servers add, `rank_operators` what one GPU launches for a
model, `step` the sum over a step. No torch and no clock here.
"""
