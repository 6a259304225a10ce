"""The version of this package. The library must have the same major and minor version."""

VERSION = "0.2.0"
