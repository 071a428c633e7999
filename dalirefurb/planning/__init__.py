"""What each epoch serves, computes and reuses: planners, shuffles, AutoAssist."""
