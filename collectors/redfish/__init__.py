"""Power as the management controller shows it over Redfish."""
