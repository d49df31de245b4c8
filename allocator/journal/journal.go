// Package journal stores each shard's records in order, durably, for one writer at a time. It stores bytes and knows nothing of
// what they mean.
//
// One writer at a time is not a lock but a fence: a record names the one that it follows, so of two writers that both think
// they are the newest one is refused, learns it, and stops (PROTOCOL.md F2).
package journal

import (
	"context"
	"errors"
)

// MaxRecord is the largest record in bytes: well below the 1 MiB that NATS takes in one message unless told otherwise, for a
// server's limit also counts headers.
const MaxRecord = 512 << 10

// Errors of a journal. ErrConflict and ErrUnknown are fatal to the loop that appends: it stops, replays and begins a new term.
var (
	// ErrConflict: another writer appended, last is not the newest record.
	ErrConflict = errors.New("another writer appended to this shard's journal; this one must stop")
	// ErrUnknown: the record may or may not have been stored.
	ErrUnknown = errors.New("the journal did not say whether the record was stored")
	// ErrMissing: there is no journal; an operator starts one with `annona allocator --init`.
	ErrMissing = errors.New("there is no journal; start one with `annona allocator --init`, which starts every pool full")
	// ErrExists: --init found a journal.
	ErrExists = errors.New("there is a journal already; start without --init")
	// ErrTooLarge: the record is larger than MaxRecord; nothing was stored. Splitting is the writer's duty.
	ErrTooLarge = errors.New("the record is larger than the journal takes")
)

// Journal is the durable order of records by shard.
type Journal interface {
	// Append stores record in shard after the record numbered last (0: none) and returns its number, which is larger.
	// It returns ErrConflict if last is not the newest, and ErrUnknown if it cannot tell what happened.
	// An Append that returns nil is durable. It retries nothing. It is safe for concurrent use on different shards.
	Append(ctx context.Context, shard int, last uint64, record []byte) (uint64, error)
	// Replay calls apply with every record of shard in order and returns the number of the last, 0 if there is none.
	// It ends with apply's first error. It sees every record acknowledged before it was called.
	Replay(ctx context.Context, shard int, apply func(number uint64, record []byte) error) (uint64, error)
}
