"""Testbed: public prompts, a real small target, drafters trained for it, and stand-ins of full size.

`nn/` holds PyTorch modules and imports torch; nothing outside it does so at module level.
"""
