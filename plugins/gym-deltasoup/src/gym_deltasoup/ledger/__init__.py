"""What happened, so that nobody can change it afterwards unseen."""
