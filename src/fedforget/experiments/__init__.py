"""The experiments of the paper's Section 6 and Appendix A, each by one command."""
