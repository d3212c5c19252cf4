"""Names of what the index counts, with their meaning; ``IndexStats.counters`` and the metrics use them."""

from collections.abc import Mapping

COUNTERS: Mapping[str, str] = {
    "bad_frames": "messages that are not the agreed format",
    "dropped_notes": "predicted entries that other processes were not told of",
    "duplicates": "messages that came again",
    "endpoint_errors": "event endpoints that could not be used",
    "forged_frames": "messages out of order that the engine's replay buffer does not confirm",
    "frames": "event messages received",
    "gaps": "times that messages before the present one were missing",
    "ignored_blocks": "blocks of sliding-window or state groups, and blocks on other machines",
    "leases_taken": "times that this process became the one to follow an engine",
    "loads": "instances read from Redis",
    "lookups": "prompts looked up",
    "losses": "times that a rank's entries were dropped because its events could not be had",
    "opaque_blocks": "blocks whose key holds more than tokens, adapter and salt",
    "orphan_blocks": "blocks whose parent is not known",
    "redis_errors": "times that Redis did not answer",
    "replayed_frames": "messages from engines' replay buffers",
    "republished": "times that an instance was written to Redis again as a whole",
    "restarts": "engine restarts seen in the sequence of messages",
    "resumed": "instances gone on with from another process's records",
    "skipped_events": "events of a type that is not known",
    "unknown_removals": "removed blocks that were not there",
}
