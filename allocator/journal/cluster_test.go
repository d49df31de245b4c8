package journal_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/bus/bustest"
)

// initOn makes the journal once the cluster has chosen its leader.
func initOn(t *testing.T, conn *nats.Conn) *journal.JetStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		j, err := journal.OpenJetStream(ctx, conn, 3, true)
		if err == nil {
			return j
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("the journal could not be made: %v", err)
		}
	}
}

// TestF2AStaleWriterIsRefusedOnThreeReplicas: while a record is on its way to the replicas, the stream answers a failed
// expectation with a code of its own, so writers race.
func TestF2AStaleWriterIsRefusedOnThreeReplicas(t *testing.T) {
	conn, err := bus.Connect(bus.Config{URLs: bustest.StartCluster(t), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	j := initOn(t, conn)
	if got := replicas(t, conn); got != 3 {
		t.Errorf("the journal has %d replicas, want 3", got)
	}
	const rounds = 10
	var last uint64
	for round := range rounds {
		last = race(t, j, last)
		for _, stale := range []uint64{last - 1, last + 1} {
			if _, err := j.Append(t.Context(), 0, stale, []byte("zombie")); !errors.Is(err, journal.ErrConflict) {
				t.Errorf("round %d: Append after %d = %v, want ErrConflict", round, stale, err)
			}
		}
	}
	records := 0
	number, err := j.Replay(t.Context(), 0, func(uint64, []byte) error {
		records++
		return nil
	})
	if err != nil || records != rounds || number != last {
		t.Errorf("Replay = %d after %d records, %v, want %d after %d", number, records, err, last, rounds)
	}
}

// race has writers append after the same record at once: one wins, whose number it returns, the others learn that they lost.
func race(t *testing.T, j *journal.JetStream, last uint64) (won uint64) {
	t.Helper()
	const writers = 8
	var wg sync.WaitGroup
	wins := make(chan uint64, writers)
	for range writers {
		wg.Go(func() {
			switch number, err := j.Append(t.Context(), 0, last, []byte("mine")); {
			case err == nil:
				wins <- number
			case !errors.Is(err, journal.ErrConflict):
				t.Errorf("Append = %v, want nil or ErrConflict", err)
			}
		})
	}
	wg.Wait()
	if len(wins) != 1 {
		t.Fatalf("%d writers appended after record %d, want 1", len(wins), last)
	}
	return <-wins
}

func replicas(t *testing.T, conn *nats.Conn) int {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "ANNONA_JOURNAL")
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().Config.Replicas
}
