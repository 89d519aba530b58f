"""Loads what people write under `profiles/`: deployments, GPUs, request sets."""

from specpilot_cli.deployment.load import Deployment, load_deployment, load_device
from specpilot_cli.deployment.requests import Request, RequestSet, load_requests

__all__ = ["Deployment", "Request", "RequestSet", "load_deployment", "load_device", "load_requests"]
