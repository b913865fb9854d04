"""Sessions kept to compare with. First form: named files beside the runs."""
