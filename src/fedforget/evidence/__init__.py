"""Evidence of exactness: laws by enumeration, verification by replay, signed receipts."""
