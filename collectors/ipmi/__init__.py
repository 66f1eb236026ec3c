"""Power as the node's baseboard management controller (BMC) measures it, over IPMI."""
