"""What only the kernel's BPF can tell of jobs; its users are the helper and its clients."""
