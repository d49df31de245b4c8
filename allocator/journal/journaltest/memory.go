// Package journaltest holds what tests of journals and of their users need: a journal in memory that can fail in both ways,
// and the suite that every journal passes.
package journaltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/annona-gateway/annona/allocator/journal"
)

// Memory is a journal in memory. Its zero value is empty and ready. It is shared by writers as a real store is: each keeps
// its own idea of the last record.
type Memory struct {
	// Fault, if set before first use, is asked before every record is stored. A nil error stores it. Any other fails the
	// Append, with the record stored (persist) or not: the two ways in which a store fails. It is called outside any lock
	// and may block. An error that is neither of the journal's counts as ErrUnknown.
	Fault func(shard int, record []byte) (persist bool, err error)

	mu struct {
		sync.Mutex
		number uint64 // of the newest record of all shards, as in a stream that they share
		shards map[int][]entry
	}
}

type entry struct {
	number uint64
	record []byte
}

var _ journal.Journal = (*Memory)(nil)

// Append implements [journal.Journal].
func (m *Memory) Append(ctx context.Context, shard int, last uint64, record []byte) (uint64, error) {
	if len(record) > journal.MaxRecord {
		return 0, journal.ErrTooLarge
	}
	persist, fault := true, error(nil)
	if m.Fault != nil {
		persist, fault = m.Fault(shard, slices.Clone(record))
	}
	if fault == nil && ctx.Err() != nil {
		persist, fault = false, ctx.Err()
	}
	if fault == nil {
		return m.store(shard, last, record)
	}
	if persist {
		if _, err := m.store(shard, last, record); err != nil {
			return 0, err
		}
	}
	if errors.Is(fault, journal.ErrConflict) || errors.Is(fault, journal.ErrUnknown) {
		return 0, fault
	}
	return 0, fmt.Errorf("%w: %w", journal.ErrUnknown, fault)
}

func (m *Memory) store(shard int, last uint64, record []byte) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries := m.mu.shards[shard]
	if last != newest(entries) {
		return 0, journal.ErrConflict
	}
	if m.mu.shards == nil {
		m.mu.shards = map[int][]entry{}
	}
	m.mu.number++
	m.mu.shards[shard] = append(entries, entry{m.mu.number, slices.Clone(record)})
	return m.mu.number, nil
}

// Replay implements [journal.Journal].
func (m *Memory) Replay(ctx context.Context, shard int, apply func(number uint64, record []byte) error) (uint64, error) {
	m.mu.Lock()
	entries := slices.Clone(m.mu.shards[shard])
	m.mu.Unlock()
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := apply(e.number, slices.Clone(e.record)); err != nil {
			return 0, err
		}
	}
	return newest(entries), nil
}

// Roll takes shard back to its first keep records, as a store restored from an old copy; 0 loses all. The numbers of what
// was lost are given out again.
func (m *Memory) Roll(shard, keep int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries := m.mu.shards[shard]
	m.mu.shards[shard] = entries[:min(keep, len(entries)):min(keep, len(entries))]
	m.mu.number = 0
	for _, entries := range m.mu.shards {
		m.mu.number = max(m.mu.number, newest(entries))
	}
}

// Records returns shard's records in order.
func (m *Memory) Records(shard int) [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	records := make([][]byte, 0, len(m.mu.shards[shard]))
	for _, e := range m.mu.shards[shard] {
		records = append(records, slices.Clone(e.record))
	}
	return records
}

func newest(entries []entry) uint64 {
	if len(entries) == 0 {
		return 0
	}
	return entries[len(entries)-1].number
}
