"""A bad day on one machine: real gateways, bridges and stores, scripted engines, and everything that can go wrong."""
