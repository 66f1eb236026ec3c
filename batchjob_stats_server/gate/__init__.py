"""The way of users to the time series database: what they ask is confined to what is theirs."""
