"""Digits of scikit-learn, learned by several clients."""
