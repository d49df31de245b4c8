package bucket

import (
	"strconv"
	"strings"

	"github.com/annona-gateway/annona/shared/limit"
)

// Names in Redis; LAYOUT.md says what each holds. The scripts publish on the same channels by name.
const (
	prefix         = "annona:1:"
	mirrorKey      = prefix + "mirror"
	gatewaysKey    = prefix + "gateways"
	demandsChannel = prefix + "demand"
	fillsChannel   = prefix + "fills"
	mirrorChannel  = prefix + "mirror"
	blocksKey      = prefix + "blocks"
	blocksChannel  = prefix + "blocks"
)

// tag returns what the keys of one shard begin with: its hash tag keeps them in one slot.
func tag(shard int) string {
	number := strconv.Itoa(shard)
	if shard < 10 {
		number = "0" + number
	}
	return prefix + "{s" + number + "}:"
}

func shardKey(shard int) string    { return tag(shard) + "shard" }
func scheduleKey(shard int) string { return tag(shard) + "due" }
func holdersKey(shard int) string  { return tag(shard) + "holders" }
func bansKey(shard int) string     { return tag(shard) + "bans" }
func entriesKey(ref Ref) string    { return tag(ref.Shard) + "l:" + ref.Key.String() }
func recordKey(ref Ref) string     { return tag(ref.Shard) + "b:" + ref.Key.String() }

// parseAnnouncement reads "SHARD KEYHEX TRACEPARENT"; ok is false for anything else.
func parseAnnouncement(payload string) (a Announcement, ok bool) {
	number, rest, _ := strings.Cut(payload, " ")
	hex, traceparent, ok := strings.Cut(rest, " ")
	if !ok {
		return a, false
	}
	shard, err := strconv.Atoi(number)
	if err != nil || shard < 0 || shard >= MaxShards {
		return a, false
	}
	key, err := limit.ParseKey(hex)
	if err != nil {
		return a, false
	}
	return Announcement{Ref: Ref{Shard: shard, Key: key}, Traceparent: cleanTraceparent(traceparent)}, true
}

// cleanTraceparent returns text if it has the form of a W3C traceparent, "" otherwise: a trace context is no reason to
// refuse a request.
func cleanTraceparent(text string) string {
	const length = len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	if len(text) != length {
		return ""
	}
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && c != '-' {
			return ""
		}
	}
	return text
}
