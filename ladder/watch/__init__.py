"""`ladder watch`: what a stranger's training loses. `inside/` observes in its process, `findings` judges afterwards."""
