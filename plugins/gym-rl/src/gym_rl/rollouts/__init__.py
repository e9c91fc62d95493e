"""Rounds of rollouts: asked, filled up, scored, credited, and handed out as steps."""
