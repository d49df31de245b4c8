package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/bus/bustest"
)

// open returns the documents on server, made if need be.
func open(t *testing.T, server *bustest.Server, create bool) *bus.Documents {
	t.Helper()
	documents, err := bus.OpenDocuments(t.Context(), server.Connect(t), 0, create)
	if err != nil {
		t.Fatalf("OpenDocuments: %v", err)
	}
	return documents
}

// put stores a revision that must be accepted.
func put(t *testing.T, documents *bus.Documents, expected uint64, text string) uint64 {
	t.Helper()
	revision, err := documents.Put(t.Context(), bus.PolicyDocument, expected, []byte(text))
	if err != nil || revision <= expected {
		t.Fatalf("Put(%d, %q) = %d, %v, want a larger revision", expected, text, revision, err)
	}
	return revision
}

func TestDocumentsPutOnlyOverTheExpectedRevision(t *testing.T) {
	documents := open(t, bustest.Start(t, bustest.Options{}), true)
	if _, err := documents.Get(t.Context(), bus.PolicyDocument); !errors.Is(err, bus.ErrNoDocument) {
		t.Fatalf("Get = %v, want ErrNoDocument", err)
	}
	first := put(t, documents, 0, "one")
	second := put(t, documents, first, "two")
	for _, stale := range []uint64{0, first, second + 1} {
		if _, err := documents.Put(t.Context(), bus.PolicyDocument, stale, []byte("three")); !errors.Is(err, bus.ErrStale) {
			t.Errorf("Put over revision %d = %v, want ErrStale", stale, err)
		}
	}
	got, err := documents.Get(t.Context(), bus.PolicyDocument)
	if err != nil || string(got.Data) != "two" || got.Revision != second || got.Created.IsZero() {
		t.Errorf("Get = %q at %d of %s, %v, want \"two\" at %d", got.Data, got.Revision, got.Created, err, second)
	}
	if _, err := documents.Put(t.Context(), bus.PolicyDocument, second, make([]byte, bus.MaxDocument+1)); err == nil {
		t.Error("a document above the limit was stored")
	}
}

func TestDocumentsHistoryIsNewestFirstAndBounded(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	documents := open(t, server, true)
	if _, err := documents.History(t.Context(), bus.PolicyDocument); !errors.Is(err, bus.ErrNoDocument) {
		t.Fatalf("History = %v, want ErrNoDocument", err)
	}
	const revisions, kept = 70, 64
	var last uint64
	for i := range revisions {
		last = put(t, documents, last, fmt.Sprint(i))
	}
	server.Restart(t)
	history, err := open(t, server, true).History(t.Context(), bus.PolicyDocument)
	if err != nil || len(history) != kept {
		t.Fatalf("History = %d revisions, %v, want %d", len(history), err, kept)
	}
	for i, document := range history {
		if want := fmt.Sprint(revisions - 1 - i); string(document.Data) != want {
			t.Fatalf("History[%d] = %q, want %q", i, document.Data, want)
		}
	}
}

func TestDocumentsNeedNotBeThereYet(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	documents := open(t, server, false)
	if _, err := documents.Get(t.Context(), bus.PolicyDocument); !errors.Is(err, bus.ErrNoDocument) {
		t.Errorf("Get = %v, want ErrNoDocument", err)
	}
	if _, err := documents.Put(t.Context(), bus.PolicyDocument, 0, nil); !errors.Is(err, bus.ErrNoDocument) {
		t.Errorf("Put = %v, want ErrNoDocument: only an allocator makes the bucket", err)
	}
}

// heard collects what a watch tells.
type heard struct {
	mu   sync.Mutex
	last bus.Document
	all  []uint64
}

func (h *heard) tell(d bus.Document) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = d
	h.all = append(h.all, d.Revision)
}

func (h *heard) is(text string) func() bool {
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return string(h.last.Data) == text
	}
}

// watch runs a Watch until the test ends and sees that it ends with its context.
func watch(t *testing.T, documents *bus.Documents) *heard {
	t.Helper()
	h := &heard{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- documents.Watch(ctx, bus.PolicyDocument, h.tell) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch = %v, want its context's error", err)
		}
	})
	return h
}

func TestWatchTellsEveryChangeOnceAndInOrder(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	early := open(t, server, false)
	early.SetPoll(20 * time.Millisecond)
	watching := watch(t, early)
	documents := open(t, server, true)
	first := put(t, documents, 0, "one")
	eventually(t, "a watch that began before the bucket hears it", watching.is("one"))
	late := watch(t, documents)
	eventually(t, "a late watch hears the newest", late.is("one"))
	put(t, documents, first, "two")
	eventually(t, "the change is heard", watching.is("two"))
	eventually(t, "the change is heard, long before the poll", late.is("two"))
	watching.mu.Lock()
	defer watching.mu.Unlock()
	for i := 1; i < len(watching.all); i++ {
		if watching.all[i] <= watching.all[i-1] {
			t.Errorf("told revisions %v, want each once and in order", watching.all)
		}
	}
}

func TestWatchPollsForWhatWasNotAnnounced(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	documents := open(t, server, true)
	documents.SetPoll(20 * time.Millisecond)
	first := put(t, documents, 0, "one")
	polls := documents.Deafen(t)
	watching := watch(t, documents)
	eventually(t, "the first revision is heard", watching.is("one"))
	put(t, documents, first, "two")
	eventually(t, "the poll finds what was not announced", watching.is("two"))
	before := polls()
	eventually(t, "a few polls more", func() bool { return polls() > before+3 })
	watching.mu.Lock()
	defer watching.mu.Unlock()
	if len(watching.all) != 2 {
		t.Errorf("told revisions %v, want each of the two once", watching.all)
	}
}

func TestWatchSurvivesARestartOfTheServer(t *testing.T) {
	server := bustest.Start(t, bustest.Options{})
	documents := open(t, server, true)
	documents.SetPoll(50 * time.Millisecond)
	first := put(t, documents, 0, "one")
	watching := watch(t, documents)
	eventually(t, "the first revision is heard", watching.is("one"))
	server.Restart(t)
	put(t, open(t, server, true), first, "two")
	eventually(t, "a change after the restart is heard", watching.is("two"))
}
