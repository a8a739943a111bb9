"""Several ranks of one training step, started by torchrun.

Every rank holds the whole model and runs the same loop on the same batches. The leader, rank 0, owns ledger, sockets,
engines and files and tells the others each batch; forward and backward passes are shared row by row, and scores, losses
and gradients are summed. Everything else follows from sums that are equal to the bit, so all ranks decide alike.
"""
