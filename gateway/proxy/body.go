package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// A client may take its time for a request's body: bodyGrace, and a second for each bodyRate bytes. That is slower than any
// network that people use, and an end to bodies that trickle in to keep a connection. Where the upstream answers before the body
// has ended, or the call is gRPC, it is a stream, which may pause as long as it likes.
const (
	bodyGrace = 30 * time.Second
	bodyRate  = 1 << 10
)

// body is a client's request body on its way to the upstream. It knows whose fault it is if the two do not get together.
type body struct {
	source   io.Reader
	deadline func(time.Time) error // of reads from the client
	stalled  func()                // told when the upstream stopped taking the body
	patience time.Duration         // with the upstream
	grace    time.Duration         // with the client

	mu struct {
		sync.Mutex
		start    time.Time
		received int64
		stream   bool // nobody is in a hurry any more
		timer    *time.Timer
		over     error // what further reads get: read to its end, or broken, or the request is over
		broken   error // why the client's part broke
	}
}

// Read reads from the client. That it is called shows that the upstream took what was read before.
func (b *body) Read(p []byte) (int, error) {
	if err := b.begin(); err != nil {
		return 0, err
	}
	n, err := b.source.Read(p)
	b.took(n, err)
	return n, err //nolint:wrapcheck // io.EOF has to stay itself
}

func (b *body) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wait(0)
	if b.mu.over != nil || b.mu.stream {
		return b.mu.over
	}
	if b.mu.start.IsZero() {
		b.mu.start = time.Now()
	}
	_ = b.deadline(b.mu.start.Add(b.grace + time.Duration(b.mu.received)*time.Second/bodyRate)) // an error: nothing to bound
	return nil
}

func (b *body) took(n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.received += int64(n)
	switch {
	case b.mu.over != nil:
	case err != nil:
		b.mu.over, b.mu.broken = err, clientFault(err)
		if b.mu.broken == nil && !b.mu.stream {
			_ = b.deadline(time.Time{})
		}
	case !b.mu.stream:
		b.wait(b.patience)
	}
}

// wait begins to wait for the upstream to take what was read, 0: ends it. The caller holds the lock.
func (b *body) wait(patience time.Duration) {
	switch {
	case patience > 0 && b.mu.timer == nil:
		b.mu.timer = time.AfterFunc(patience, b.stalled)
	case patience > 0:
		b.mu.timer.Reset(patience)
	case b.mu.timer != nil:
		b.mu.timer.Stop()
	}
}

// clientFault is what a client is told about its own broken body, nil at its end.
func clientFault(err error) error {
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &tooLarge):
		return ErrTooLarge
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w: %w", ErrSlowBody, err)
	}
	return fmt.Errorf("%w: %w", ErrBody, err)
}

// release ends all haste: the upstream has answered.
func (b *body) release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wait(0)
	if b.mu.over == nil && !b.mu.start.IsZero() {
		_ = b.deadline(time.Time{})
	}
	b.mu.stream = true
}

// end refuses further reads: the request is over. A read that still waits for the client is woken by the server.
func (b *body) end() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wait(0)
	if b.mu.over == nil {
		b.mu.over = http.ErrBodyReadAfterClose
	}
}

// failure is why the client's part broke, nil if it did not.
func (b *body) failure() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.broken
}

// Close does nothing: a transport closes a body that it could not send, and another upstream may get it. The server closes the
// client's end.
func (b *body) Close() error { return nil }

// newBody takes over r's body, nil if it has none.
func newBody(w http.ResponseWriter, r *http.Request, t *Target, cancel context.CancelCauseFunc) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	return &body{
		source:   http.MaxBytesReader(w, r.Body, int64(t.MaxBody)),
		deadline: http.NewResponseController(w).SetReadDeadline,
		stalled:  func() { cancel(ErrUpstreamTimeout) },
		patience: t.Timeout, grace: t.grace,
	}
}
