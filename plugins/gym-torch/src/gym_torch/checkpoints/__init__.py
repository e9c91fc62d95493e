"""What a run leaves behind to go on from: files that are whole or not there, and the exact state of a job."""
