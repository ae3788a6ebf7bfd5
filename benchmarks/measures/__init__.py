"""What can be measured: a flag and a module each, which returns raw results and its part of the report."""
