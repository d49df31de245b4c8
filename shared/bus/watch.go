package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Watch calls f with the newest revision and every later one until ctx ends; it polls every 30 s besides, so that a lost
// update is late, not lost. f is never called at the same time twice. Revisions that follow each other quickly may be
// passed over, the newest never is. It returns ctx's error, and waits where NATS or the document is not there.
func (d *Documents) Watch(ctx context.Context, name string, f func(Document)) error {
	w := watch{documents: d, name: name, f: f}
	defer w.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			timer.Reset(w.read(ctx))
		case entry, open := <-w.updates:
			w.update(entry, open)
		}
	}
}

// watch is the state of one Watch, owned by its loop.
type watch struct {
	documents *Documents
	name      string
	f         func(Document)
	seen      uint64 // the last revision given to f
	watcher   jetstream.KeyWatcher
	updates   <-chan jetstream.KeyValueEntry // nil while there is no watcher
}

// read polls once and sees to it that announcements arrive; it polls also where they can not. It returns when to come again.
func (w *watch) read(ctx context.Context) time.Duration {
	listening := w.watcher != nil || w.listen(ctx)
	document, err := w.documents.Get(ctx, w.name)
	if err == nil {
		w.tell(document)
	}
	if !listening || err != nil && !errors.Is(err, ErrNoDocument) {
		return w.documents.retry
	}
	return w.documents.poll
}

// listen subscribes to updates and reports whether that worked. It comes before the first read, so nothing falls between.
func (w *watch) listen(ctx context.Context) bool {
	kv, err := w.documents.bucket(ctx)
	if err != nil {
		return false
	}
	watcher, err := kv.Watch(ctx, w.name, jetstream.UpdatesOnly())
	if err != nil {
		return false
	}
	w.watcher, w.updates = watcher, watcher.Updates()
	return true
}

// update takes one announcement. A closed channel means that the watcher ended; the next read begins another.
func (w *watch) update(entry jetstream.KeyValueEntry, open bool) {
	if !open {
		w.stop()
		return
	}
	if entry != nil && entry.Operation() == jetstream.KeyValuePut {
		w.tell(documentOf(entry))
	}
}

func (w *watch) tell(document Document) {
	if document.Revision > w.seen {
		w.seen = document.Revision
		w.f(document)
	}
}

func (w *watch) stop() {
	if w.watcher != nil {
		// It fails where the connection is closed, and then there is nothing to stop.
		_ = w.watcher.Stop()
		w.watcher, w.updates = nil, nil
	}
}
