"""Tests of what users test their jobs with."""
