"""The durable store of a run's snapshots, in a local folder or in a remote file system.

`store` saves and restores; it is what the rest of the runtime uses. Beneath it, `places` is a file system as
the store needs it, with `local` and `remote` as its two kinds and `opening` to make one of a URL; `layout` is
which names the store gives, `manifest` what a snapshot says of itself, `runs` the buckets of an outlet as
bytes, `adopting` how one version of a flow goes on from the snapshot of another, `cleaning` what is deleted
and when, `claim` which run may work with the snapshots, `whereabouts` what tells its place from another,
`needed` what cannot begin without a snapshot, and `bounded` the reason why nothing here waits for ever.
"""
