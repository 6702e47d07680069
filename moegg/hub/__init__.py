"""Models on a hub: addresses, ranged reads, download with repair. HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE are respected."""
