package gateway

import (
	"bytes"
	"io"
	"net/http"
)

const (
	// maxAhead is how much of one waiting request's body is kept, maxAllAhead of all of them.
	maxAhead    = 256 << 10
	maxAllAhead = 64 << 20
)

// ahead is a body that is read while its request waits. The server of HTTP/1 sees that a client has left only where it has read
// all that the client sent: without this, a place in a queue would be kept for a POST whose client is gone.
type ahead struct {
	source io.ReadCloser
	read   chan struct{} // closed when all is read, or it failed
	text   bytes.Buffer
	err    error
}

// readAhead begins to read the body of x's request, if it says that it is short, and keeps it until the request ends. A larger
// one stays where it is: whose client leaves meanwhile keeps its place until its turn.
func (g *Gateway) readAhead(r *http.Request, x *exchange) {
	size := r.ContentLength
	if r.ProtoMajor > 1 || size < 1 || size > maxAhead || r.Header.Get("Expect") != "" {
		return
	}
	let := x.let
	x.let = func() { let(); g.ahead.Add(-size) }
	if g.ahead.Add(size) > maxAllAhead {
		return
	}
	a := &ahead{source: r.Body, read: make(chan struct{})}
	r.Body = a
	go a.fill()
}

func (a *ahead) fill() {
	defer close(a.read)
	_, a.err = a.text.ReadFrom(a.source)
	if a.err == nil {
		a.err = io.EOF
	}
}

// Read waits for what is being read.
func (a *ahead) Read(p []byte) (int, error) {
	<-a.read
	if n, _ := a.text.Read(p); n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, a.err
}

// Close closes the client's end.
func (a *ahead) Close() error { return a.source.Close() } //nolint:wrapcheck // a body among bodies
