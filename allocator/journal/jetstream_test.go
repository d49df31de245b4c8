package journal_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/shared/bus/bustest"
)

// open opens the journal on server, which must be there.
func open(t testing.TB, server *bustest.Server) *journal.JetStream {
	t.Helper()
	j, err := journal.OpenJetStream(t.Context(), server.Connect(t), 0, false)
	if err != nil {
		t.Fatalf("OpenJetStream: %v", err)
	}
	return j
}

// initialise makes the journal on server.
func initialise(t testing.TB, server *bustest.Server) *journal.JetStream {
	t.Helper()
	j, err := journal.OpenJetStream(t.Context(), server.Connect(t), 0, true)
	if err != nil {
		t.Fatalf("OpenJetStream with init: %v", err)
	}
	return j
}

func TestJetStreamKeepsTheContract(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) journaltest.Store {
		server := bustest.Start(t, bustest.Options{})
		initialise(t, server)
		return journaltest.Store{
			Open:    func(t *testing.T) journal.Journal { return open(t, server) },
			Restart: func(t *testing.T) { server.Restart(t) },
		}
	})
}

func TestF1TheJournalIsMadeOnlyByInit(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	conn := server.Connect(t)
	if _, err := journal.OpenJetStream(t.Context(), conn, 0, false); !errors.Is(err, journal.ErrMissing) {
		t.Fatalf("open without a journal = %v, want ErrMissing", err)
	}
	initialise(t, server)
	open(t, server)
	if _, err := journal.OpenJetStream(t.Context(), conn, 0, true); !errors.Is(err, journal.ErrExists) {
		t.Errorf("init over a journal = %v, want ErrExists", err)
	}
}

func TestF2WhileNATSIsOutTheOutcomeIsUnknownAndComesSoon(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	j := initialise(t, server)
	last, err := j.Append(t.Context(), 0, 0, []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	began := time.Now()
	if _, err := j.Append(t.Context(), 0, last, []byte("two")); !errors.Is(err, journal.ErrUnknown) {
		t.Errorf("Append while NATS is out = %v, want ErrUnknown", err)
	}
	if _, err := j.Replay(t.Context(), 0, func(uint64, []byte) error { return nil }); err == nil {
		t.Error("Replay while NATS is out = nil, want an error: it must not look like an empty journal")
	}
	const most = 10 * time.Second
	if took := time.Since(began); took > most {
		t.Errorf("took %s, want at most %s", took, most)
	}
	if _, err := journal.OpenJetStream(t.Context(), server.Connect(t), 0, true); err == nil || errors.Is(err, journal.ErrExists) {
		t.Errorf("init while NATS is out = %v, want an error that says so", err)
	}
}

func TestF2AJournalThatWasDeletedIsNoEmptyJournal(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	j := initialise(t, server)
	js, err := jetstream.New(server.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "ANNONA_JOURNAL"); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Replay(t.Context(), 0, func(uint64, []byte) error { return nil }); !errors.Is(err, journal.ErrMissing) {
		t.Errorf("Replay without a stream = %v, want ErrMissing", err)
	}
	if _, err := j.Append(t.Context(), 0, 0, []byte("x")); !errors.Is(err, journal.ErrUnknown) {
		t.Errorf("Append without a stream = %v, want ErrUnknown", err)
	}
}

func TestNoRecordOfTheJournalCanBeDeleted(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	last, err := initialise(t, server).Append(t.Context(), 0, 0, []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(server.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "ANNONA_JOURNAL")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), last); err == nil {
		t.Error("a record was deleted")
	}
	if config := stream.CachedInfo().Config; config.Storage != jetstream.FileStorage || config.Replicas != 1 {
		t.Errorf("storage %v, replicas %d, want files and 1 on a single server", config.Storage, config.Replicas)
	}
}

// TestReplayIsFast replays more than the reader asks for at once.
func TestReplayIsFast(t *testing.T) {
	const records, most = 5_000, 5 * time.Second
	server := bustest.Start(t, bustest.Options{})
	j := initialise(t, server)
	fill(t, server, records)
	began, seen := time.Now(), 0
	last, err := j.Replay(t.Context(), 0, func(uint64, []byte) error {
		seen++
		return nil
	})
	took := time.Since(began)
	if err != nil || seen != records || last != records {
		t.Fatalf("Replay = %d after %d records, %v, want %d", last, seen, err, records)
	}
	if took > most {
		t.Errorf("replaying %d records took %s, want at most %s", records, took, most)
	}
	t.Logf("replayed %d records in %s", records, took)
}

// fill stores many records without waiting for each.
func fill(t *testing.T, server *bustest.Server, records int) {
	t.Helper()
	const most = 2 * time.Minute
	js, err := jetstream.New(server.Connect(t), jetstream.WithPublishAsyncMaxPending(1000))
	if err != nil {
		t.Fatal(err)
	}
	record := []byte(strings.Repeat("r", 200))
	for range records {
		if _, err := js.PublishAsync("annona.journal.0", record, jetstream.WithStallWait(most)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(most):
		t.Fatal("the records were not acknowledged")
	}
}
