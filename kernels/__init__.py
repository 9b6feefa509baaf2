"""Operators on tensors. Each has one public function, a reference that defines it, and faster implementations."""
