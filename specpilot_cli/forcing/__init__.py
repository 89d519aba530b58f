"""Token forcing: is every output token the stock target's own choice, up to rounding?"""
