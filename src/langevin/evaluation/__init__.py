"""How good predictions are: scores and calibration."""
