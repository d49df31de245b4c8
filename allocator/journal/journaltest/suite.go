package journaltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/annona-gateway/annona/allocator/journal"
)

// Store is one store of records as the suite sees it.
type Store struct {
	// Open returns a journal on the store. Several may be open at once, as several writers are.
	Open func(t *testing.T) journal.Journal
	// Restart stops the store and starts it again; journals opened before are not used after it.
	Restart func(t *testing.T)
}

// Run checks the contract of [journal.Journal]; fresh returns a new, empty store.
func Run(t *testing.T, fresh func(t *testing.T) Store) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, Store){
		"nothing to replay":                             replayNothing,
		"records come back in order":                    replayOrder,
		"F2 a stale writer is refused":                  staleWriter,
		"a conflict stores nothing":                     conflictStoresNothing,
		"a restart keeps what was acknowledged":         restartKeeps,
		"shards are apart and may append at once":       shardsApart,
		"of many writers one wins each number":          oneWinner,
		"the largest record fits and a larger does not": recordSizes,
		"replay ends with the first error":              replayError,
		"replay sees what was there when it began":      replayWhileAppending,
		"a context that ended stores nothing known":     endedContext,
	} {
		t.Run(name, func(t *testing.T) { check(t, fresh(t)) })
	}
}

// read replays a shard and returns its records and the last number.
func read(t *testing.T, j journal.Journal, shard int) (records []string, last uint64) {
	t.Helper()
	var before uint64
	last, err := j.Replay(t.Context(), shard, func(number uint64, record []byte) error {
		if number <= before {
			t.Errorf("shard %d: record %d replayed after %d", shard, number, before)
		}
		before = number
		records = append(records, string(record))
		return nil
	})
	if err != nil || last != before {
		t.Fatalf("Replay(%d) = %d, %v, want %d", shard, last, err, before)
	}
	return records, last
}

// add appends a record that must be accepted.
func add(t *testing.T, j journal.Journal, shard int, last uint64, record string) uint64 {
	t.Helper()
	number, err := j.Append(t.Context(), shard, last, []byte(record))
	if err != nil || number <= last {
		t.Fatalf("Append(%d, after %d) = %d, %v, want a larger number", shard, last, number, err)
	}
	return number
}

func want(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("the journal holds %q, want %q", got, want)
	}
}

func replayNothing(t *testing.T, store Store) {
	j := store.Open(t)
	add(t, j, 1, 0, "of another shard")
	records, last := read(t, j, 7)
	if len(records) != 0 || last != 0 {
		t.Errorf("Replay of nothing = %q, last %d, want none and 0", records, last)
	}
}

func replayOrder(t *testing.T, store Store) {
	j := store.Open(t)
	var all []string
	var last, other uint64
	for i := range 300 {
		record := fmt.Sprint("record ", i)
		last = add(t, j, 3, last, record)
		other = add(t, j, 4, other, "between")
		all = append(all, record)
	}
	records, number := read(t, store.Open(t), 3)
	want(t, records, all)
	if number != last {
		t.Errorf("last = %d, want %d", number, last)
	}
}

func staleWriter(t *testing.T, store Store) {
	old, successor := store.Open(t), store.Open(t)
	first := add(t, old, 0, 0, "old")
	_, last := read(t, successor, 0)
	second := add(t, successor, 0, last, "new")
	for _, stale := range []uint64{0, first, second + 1} {
		if _, err := old.Append(t.Context(), 0, stale, []byte("zombie")); !errors.Is(err, journal.ErrConflict) {
			t.Errorf("Append after %d = %v, want ErrConflict", stale, err)
		}
	}
	records, _ := read(t, old, 0)
	want(t, records, []string{"old", "new"})
}

func conflictStoresNothing(t *testing.T, store Store) {
	j := store.Open(t)
	if _, err := j.Append(t.Context(), 5, 9, []byte("too early")); !errors.Is(err, journal.ErrConflict) {
		t.Errorf("Append after a record that is not there = %v, want ErrConflict", err)
	}
	add(t, j, 5, 0, "first")
	records, _ := read(t, j, 5)
	want(t, records, []string{"first"})
}

func restartKeeps(t *testing.T, store Store) {
	j := store.Open(t)
	last := add(t, j, 2, 0, "one")
	last = add(t, j, 2, last, "two")
	store.Restart(t)
	j = store.Open(t)
	records, number := read(t, j, 2)
	want(t, records, []string{"one", "two"})
	if number != last {
		t.Errorf("last = %d after the restart, want %d", number, last)
	}
	add(t, j, 2, last, "three")
}

func shardsApart(t *testing.T, store Store) {
	const shards, each = 8, 25
	j := store.Open(t)
	var wg sync.WaitGroup
	for shard := range shards {
		wg.Go(func() {
			var last uint64
			for i := range each {
				number, err := j.Append(t.Context(), shard, last, fmt.Appendf(nil, "%d/%d", shard, i))
				if err != nil {
					t.Errorf("Append(%d, after %d) = %v", shard, last, err)
					return
				}
				last = number
			}
		})
	}
	wg.Wait()
	for shard := range shards {
		records, _ := read(t, j, shard)
		if len(records) != each || records[each-1] != fmt.Sprintf("%d/%d", shard, each-1) {
			t.Errorf("shard %d holds %d records, want its %d", shard, len(records), each)
		}
	}
}

func oneWinner(t *testing.T, store Store) {
	const writers, rounds = 4, 10
	journals := make([]journal.Journal, writers)
	for i := range journals {
		journals[i] = store.Open(t)
	}
	var last uint64
	for round := range rounds {
		var wins sync.Map
		var wg sync.WaitGroup
		for i, j := range journals {
			wg.Go(func() {
				switch number, err := j.Append(t.Context(), 0, last, fmt.Appendf(nil, "%d", i)); {
				case err == nil:
					wins.Store(i, number)
				case !errors.Is(err, journal.ErrConflict):
					t.Errorf("Append of writer %d = %v, want nil or ErrConflict", i, err)
				}
			})
		}
		wg.Wait()
		won := 0
		wins.Range(func(_, number any) bool {
			won++
			last, _ = number.(uint64)
			return true
		})
		if won != 1 {
			t.Fatalf("round %d: %d writers appended after the same record, want 1", round, won)
		}
	}
	if records, _ := read(t, journals[0], 0); len(records) != rounds {
		t.Errorf("%d records, want %d", len(records), rounds)
	}
}

func recordSizes(t *testing.T, store Store) {
	j := store.Open(t)
	large := bytes.Repeat([]byte{'x'}, journal.MaxRecord)
	last := add(t, j, 0, 0, string(large))
	if _, err := j.Append(t.Context(), 0, last, append(large, 'x')); !errors.Is(err, journal.ErrTooLarge) {
		t.Errorf("Append of %d bytes = %v, want ErrTooLarge", len(large)+1, err)
	}
	if records, _ := read(t, j, 0); len(records) != 1 || len(records[0]) != journal.MaxRecord {
		t.Errorf("%d records, want the large one", len(records))
	}
}

func replayError(t *testing.T, store Store) {
	j := store.Open(t)
	last := add(t, j, 0, 0, "one")
	add(t, j, 0, last, "two")
	stop := errors.New("stop")
	calls := 0
	_, err := j.Replay(t.Context(), 0, func(uint64, []byte) error {
		calls++
		return stop
	})
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("Replay = %v after %d calls, want the first error after 1", err, calls)
	}
}

func replayWhileAppending(t *testing.T, store Store) {
	j, writer := store.Open(t), store.Open(t)
	last := add(t, writer, 0, 0, "first")
	var records int
	number, err := j.Replay(t.Context(), 0, func(uint64, []byte) error {
		records++
		if records < 50 {
			last = add(t, writer, 0, last, "later")
		}
		return nil
	})
	if err != nil || records == 0 || number == 0 {
		t.Errorf("Replay = %d after %d records, %v, want what was there", number, records, err)
	}
}

func endedContext(t *testing.T, store Store) {
	j := store.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Append(ctx, 0, 0, []byte("late")); !errors.Is(err, journal.ErrUnknown) {
		t.Errorf("Append with an ended context = %v, want ErrUnknown", err)
	}
}
