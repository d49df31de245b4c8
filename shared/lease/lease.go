// Package lease is the one home of the lease protocol between regions and the allocator: subjects, limits and the checks that
// every message must pass. The messages themselves are protobuf (leasepb); the rules are PROTOCOL.md's.
//
// A message is checked as it is written and as it is read: whatever it makes the other end remember, add or wait for has a
// bound here, and nothing is decided about one that fails. Releases run side by side, so bytes mean the same for ever:
// testdata holds messages as they were first written, which every later release must read and write alike.
package lease

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// Proto is the version of the envelope that this code speaks.
const Proto = 1

const (
	// MaxItems is how many items an envelope may hold.
	MaxItems = 512
	// MaxRegionName bounds a region's name, which is part of subjects and metric labels.
	MaxRegionName = 32
)

// LeaseSubject is where region sends envelopes about shard.
func LeaseSubject(region string, shard int) string {
	return "annona.lease." + region + "." + strconv.Itoa(shard)
}

// WriterSubject is what shard's writer subscribes to: the envelopes of every region.
func WriterSubject(shard int) string { return "annona.lease.*." + strconv.Itoa(shard) }

// PingSubject is where region asks shard's writer for the state of its share.
func PingSubject(region string, shard int) string {
	return "annona.ping." + region + "." + strconv.Itoa(shard)
}

// RecallSubject is where the allocator asks region for tokens back.
func RecallSubject(region string) string { return "annona.recall." + region }

// JournalSubject is where shard's facts are stored.
func JournalSubject(shard int) string { return "annona.journal." + strconv.Itoa(shard) }

// InboxPrefix is the prefix of the subjects on which region gets replies; its credentials reach no other region's.
func InboxPrefix(region string) string { return "_INBOX." + region }

// ParseSubject returns the region and the shard that a lease subject names.
func ParseSubject(subject string) (region string, shard int, ok bool) {
	parts := strings.Split(subject, ".")
	if len(parts) != 4 || parts[0] != "annona" || parts[1] != "lease" {
		return "", 0, false
	}
	shard, err := strconv.Atoi(parts[3])
	if err != nil || shard < 0 || strconv.Itoa(shard) != parts[3] {
		return "", 0, false
	}
	return parts[2], shard, true
}

// CheckRegionName says what is wrong with a region's name, nil if nothing.
func CheckRegionName(name string) error {
	if name == "" || len(name) > MaxRegionName {
		return fmt.Errorf("region name %q must have 1 to %d characters", name, MaxRegionName)
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("region name %q may only have a-z, 0-9 and -", name)
		}
	}
	return nil
}

// KeyOf returns the key that item is about.
func KeyOf(item *leasepb.Item) limit.Key { return limit.Key(item.GetKey()) }
