"""Did a commit make anything slower? Two commits measured side by side, history screened, what is accepted."""
